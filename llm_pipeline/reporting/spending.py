"""What a release took beside what its plan said: seconds, GPU-hours and money of each stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from llm_pipeline.base.quantities import duration
from llm_pipeline.base.records import Frozen
from llm_pipeline.planning.stage_cost import PlannedStage, StepCost
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.measured_cost import MeasuredCost, chosen_variants, measured_cost, release_cost
from llm_pipeline.release.record import ReleaseRecord

_NONE = "\N{EN DASH}"


class Spending(Frozen):
    """All stages that ran, and their sum.

    Attributes:
        rows: Stage, time, planned time, GPU-hours, price and planned price as people read them; the sum comes last.
        currency: Of the prices, as three letters; empty where the deployment names none.
    """

    rows: tuple[tuple[str, ...], ...] = ()
    total: MeasuredCost = MeasuredCost()
    currency: str = ""


def read_spending(record: ReleaseRecord, results: Sequence[StageResult], planned: Iterable[PlannedStage]) -> Spending:
    """What the stages took, in their order, beside the plan's figures for each."""
    plan = {(stage.stage, stage.subject): stage.cost for stage in planned}
    variants = chosen_variants(results)
    rows = [_row(record, result, variants, plan.get((result.stage, result.subject), StepCost())) for result in results]
    total = release_cost(record, results)
    if rows:
        rows.append(("all", duration(total.seconds), "", *_spent(total), ""))
    currency = record.deployment.currency if record.deployment.gpu_hour_prices else ""
    return Spending(rows=tuple(rows), total=total, currency=currency)


def _row(record: ReleaseRecord, result: StageResult, variants: Mapping[str, str], plan: StepCost) -> tuple[str, ...]:
    measured = measured_cost(record, result, variants)
    return (
        f"{result.stage} {result.subject}".strip().replace("_", " "),
        "reused" if result.reused else duration(measured.seconds),
        _NONE if plan.seconds is None else duration(plan.seconds),
        *_spent(measured),
        _price(plan.price),
    )


def _spent(cost: MeasuredCost) -> tuple[str, str]:
    """GPU-hours and their price; a dash for what kept no GPU busy."""
    return (f"{cost.gpu_hours:.3f}", _price(cost.price)) if cost.gpu_hours else (_NONE, _NONE)


def _price(price: float | None) -> str:
    return _NONE if price is None else f"{price:.2f}"
