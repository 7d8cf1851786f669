"""Planning: what a release needs and whether it can work, before anything is spent."""
