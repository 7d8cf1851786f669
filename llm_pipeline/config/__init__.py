"""Configuration: frozen models, and YAML files whose mistakes are reported by file, line and key."""
