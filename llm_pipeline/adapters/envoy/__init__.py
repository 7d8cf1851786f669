"""Envoy: a router that is started here or runs already, configured by files."""
