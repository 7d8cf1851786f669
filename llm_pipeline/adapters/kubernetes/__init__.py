"""Kubernetes: its API's client, objects that are compared and swapped, and stages as Jobs."""
