"""By which of its metrics a task is judged."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class TaskMetric(BaseModel):
    """What the score of a task's items is.

    Attributes:
        metric: lm-eval's name of it: `acc`, `acc_norm`, `exact_match`.
        filter: lm-eval's name of the reading of an answer that is scored; `none` where there is only one.
        higher_is_better: False for a loss, such as bits a byte.
        minimum: Lowest score an item can have; None where that is not known.
        maximum: Highest score an item can have; None where that is not known.
        few_shots: Solved examples in each prompt.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: str
    filter: str = "none"
    higher_is_better: bool = True
    minimum: float | None = None
    maximum: float | None = None
    few_shots: int = 0
