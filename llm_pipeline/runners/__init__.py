"""Runners: where the process of a stage runs."""
