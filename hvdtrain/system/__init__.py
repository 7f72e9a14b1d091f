"""The machine and the job this process runs in; standard library only."""
