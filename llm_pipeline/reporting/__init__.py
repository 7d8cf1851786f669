"""The report of a release: one self-contained page."""
