"""Code that Triton's python backend runs: files that are copied into model repositories and import nothing of ours."""
