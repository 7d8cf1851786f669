"""Quantization with modelopt, and reading its checkpoints back without it."""
