"""What the kernel says: processes, mappings, control groups, sockets, NUMA settings."""
