"""A release as a run of MLflow."""
