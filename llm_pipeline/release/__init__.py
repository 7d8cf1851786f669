"""The flow of a release: its steps as data, the rules by which they start, and a config's tasks."""
