"""Groups of processes, one file per kind, and the ring allreduce over TCP."""
