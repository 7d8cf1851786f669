"""Formats that stages hand on: checkpoints, engines, scored items, golden answers, model repositories."""
