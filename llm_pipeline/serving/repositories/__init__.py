"""What the model repository of every engine has; the rest of it is written by the engine's adapter."""
