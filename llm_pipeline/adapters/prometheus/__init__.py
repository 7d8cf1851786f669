"""Prometheus as a source of the canary's counts."""
