"""One file per launcher: the function `build` makes its command line from the description of a job.

settings.py has what all of them share, open_mpi.py the options of mpirun and `horovodrun --mpi`; registry.py lists
the launchers.
"""
