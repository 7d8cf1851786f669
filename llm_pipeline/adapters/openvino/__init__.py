"""OpenVINO: engines for CPUs, served by its continuous batching."""
