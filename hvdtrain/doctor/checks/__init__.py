"""The doctor's checks, one file per topic; `hvdtrain.doctor.registry` lists them in order."""
