"""A Triton that runs already: models are loaded into it, and unloaded."""
