"""The doctor's checks, one file per topic; `hvdtrain.doctor.examination` lists the files.

A new check is a function `check_<name>` with the decorator `doctor.check.check`, in the file of its topic.
"""
