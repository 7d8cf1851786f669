"""The demo model after a few steps of training, made once a session for every test that needs a real checkpoint."""

from __future__ import annotations

import functools
from pathlib import Path

from llm_pipeline.demo.train import Training, train_demo_model

STEPS = 60


@functools.cache
def checkpoint(directory: Path) -> Path:
    train_demo_model(directory / "checkpoint", Training(steps=STEPS))
    return directory / "checkpoint"
