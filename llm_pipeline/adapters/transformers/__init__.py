"""Transformers: continuous batching by PyTorch, the reference without further dependencies."""
