"""What a model is: sizes, caches and context length, read from its config.json and the headers of its weights."""
