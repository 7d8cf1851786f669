"""Serving: Triton model repositories, server control, clients and probes."""
