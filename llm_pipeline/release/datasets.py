"""What the datasets of a release are called: apart from its record, whose models a stage's process seldom needs."""

from __future__ import annotations

TASKS_DATASET = "tasks"
PROMPTS_DATASET = "prompts"


def calibration_dataset(recipe: str) -> str:
    """Name of a recipe's calibration set among the datasets of a release."""
    return f"calibration.{recipe}"
