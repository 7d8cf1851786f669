"""The code that Triton's python backend runs: files that are copied into model repositories and stand alone there."""
