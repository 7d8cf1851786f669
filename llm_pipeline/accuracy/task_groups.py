"""Groups of tasks that lm-eval reports as one score, such as MMLU and its 57 subjects."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class TaskGroup(BaseModel):
    """A group that an evaluation asked for by name: one score, and its tasks are information.

    Attributes:
        name: What the release config calls it.
        tasks: Its tasks, those of groups inside of it included, sorted.
        weighting: `items` counts every document alike (lm-eval's `weight_by_size: true`); `tasks` takes the mean of
            the tasks' means.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    tasks: tuple[str, ...]
    weighting: Literal["items", "tasks"] = "items"
