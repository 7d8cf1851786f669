"""The demo: a small model of our own, a local hub, and one machine without a GPU."""
