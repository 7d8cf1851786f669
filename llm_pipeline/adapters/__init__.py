"""One folder for each system of others; behind ports, opened by entry points, imported by nothing in the core."""
