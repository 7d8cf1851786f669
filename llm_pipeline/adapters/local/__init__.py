"""Everything on this host: a store in a directory, stages as processes, a Triton on loopback ports."""
