"""One file per launcher: the function `build` makes its command line from the description of a job."""
