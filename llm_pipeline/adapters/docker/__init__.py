"""Docker: its client, images, and stages as containers."""
