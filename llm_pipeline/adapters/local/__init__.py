"""Everything on this host: a store in a directory, stages as processes or containers, a Triton on loopback ports."""
