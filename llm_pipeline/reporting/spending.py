"""What a release took beside what its plan said: seconds, GPU-hours and money of each stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llm_pipeline.base.quantities import duration
from llm_pipeline.base.records import Frozen
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.planning.stage_cost import PlannedStage
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.measured_cost import MeasuredCost, chosen_variants, measured_cost, release_cost
from llm_pipeline.release.record import ReleaseRecord

_NONE = "\N{EN DASH}"


class SpendingRow(Frozen):
    """One stage, or all of them, as people read it.

    Attributes:
        share: Of the time of the longest stage; None for the sum.
        verdict: Of a gate.
    """

    stage: str
    share: float | None = None
    verdict: Verdict | None = None
    took: str
    planned: str = ""
    gpu_hours: str
    price: str
    planned_price: str = ""


class Spending(Frozen):
    """All stages that ran; their sum comes last.

    Attributes:
        currency: Of the prices, as three letters; empty where the deployment names none.
    """

    rows: tuple[SpendingRow, ...] = ()
    currency: str = ""


def read_spending(record: ReleaseRecord, results: Sequence[StageResult], planned: Iterable[PlannedStage]) -> Spending:
    """What the stages took, in their order, beside the plan's figures for each."""
    plan = {(stage.stage, stage.subject): stage for stage in planned}
    variants = chosen_variants(results)
    longest = max((result.timings.total_seconds for result in results), default=0.0) or 1.0
    rows = []
    for result in results:
        measured = measured_cost(record, result, variants)
        expected = plan.get((result.stage, result.subject), PlannedStage(stage=result.stage))
        row = SpendingRow(
            stage=f"{result.stage} {result.subject}".strip().replace("_", " "),
            share=0.0 if result.reused else result.timings.total_seconds / longest,
            verdict=result.judgement.verdict if result.judgement else None,
            took="reused" if result.reused else duration(measured.seconds),
            planned=_NONE if expected.seconds is None else duration(expected.seconds),
            gpu_hours=_hours(measured),
            price=_price(measured.price if measured.gpu_hours else None),
            planned_price=_price(expected.price),
        )
        rows.append(row)
    if rows:
        total = release_cost(record, results)
        price = _price(total.price if total.gpu_hours else None)
        rows.append(SpendingRow(stage="all", took=duration(total.seconds), gpu_hours=_hours(total), price=price))
    currency = record.deployment.currency if record.deployment.gpu_hour_prices else ""
    return Spending(rows=tuple(rows), currency=currency)


def _hours(cost: MeasuredCost) -> str:
    """A dash for what kept no GPU busy."""
    return f"{cost.gpu_hours:.3f}" if cost.gpu_hours else _NONE


def _price(price: float | None) -> str:
    return _NONE if price is None else f"{price:.2f}"
