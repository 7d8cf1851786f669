"""What a release took beside what its plan said: seconds, GPU-hours and money of each stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llm_pipeline.base.quantities import duration
from llm_pipeline.base.records import Frozen
from llm_pipeline.planning.stage_cost import PlannedStage
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.measured_cost import MeasuredCost, measured_cost, release_cost
from llm_pipeline.release.record import ReleaseRecord

_NONE = "\N{EN DASH}"


class StageSpending(Frozen):
    """One stage, measured and planned.

    Attributes:
        planned_seconds: When it is computed; None where the plan did not know.
        planned_price: In the deployment's currency; None without a price.
    """

    stage: str
    subject: str
    reused: bool
    measured: MeasuredCost
    planned_seconds: float | None = None
    planned_price: float | None = None


class Spending(Frozen):
    """All stages that ran, and their sum.

    Attributes:
        currency: Of the prices, as three letters; empty where the deployment names none.
    """

    stages: tuple[StageSpending, ...] = ()
    total: MeasuredCost = MeasuredCost()
    currency: str = ""


def read_spending(record: ReleaseRecord, results: Sequence[StageResult], planned: Iterable[PlannedStage]) -> Spending:
    """What the stages took, in their order, beside the plan's figures for each."""
    plan = {(stage.stage, stage.subject): stage.cost for stage in planned}
    stages = []
    for result in results:
        cost = plan.get((result.stage, result.subject))
        stages.append(
            StageSpending(
                stage=result.stage,
                subject=result.subject,
                reused=result.reused,
                measured=measured_cost(record, result),
                planned_seconds=cost.seconds if cost else None,
                planned_price=cost.price if cost else None,
            )
        )
    currency = record.deployment.currency if record.deployment.gpu_hour_prices else ""
    return Spending(stages=tuple(stages), total=release_cost(record, results), currency=currency)


def spending_rows(spending: Spending) -> list[tuple[str, ...]]:
    """Stage, time, planned time, GPU-hours, price and planned price as people read them; the sum comes last."""
    rows = [
        (
            f"{one.stage} {one.subject}".strip().replace("_", " "),
            "reused" if one.reused else duration(one.measured.seconds),
            _NONE if one.planned_seconds is None else duration(one.planned_seconds),
            *_spent(one.measured),
            _price(one.planned_price),
        )
        for one in spending.stages
    ]
    return [*rows, ("all", duration(spending.total.seconds), "", *_spent(spending.total), "")]


def _spent(cost: MeasuredCost) -> tuple[str, str]:
    """GPU-hours and their price; a dash for what kept no GPU busy."""
    return (f"{cost.gpu_hours:.3f}", _price(cost.price)) if cost.gpu_hours else (_NONE, _NONE)


def _price(price: float | None) -> str:
    return _NONE if price is None else f"{price:.2f}"
