"""Groups of processes, and the ring allreduce over TCP."""
