"""What a release cost, by what was measured, beside the plan's figures."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from store_history import History

from llm_pipeline.config.deployment import Deployment
from llm_pipeline.planning.stage_cost import PlannedStage
from llm_pipeline.release.contract import StageResult, Timings
from llm_pipeline.release.measured_cost import release_cost
from llm_pipeline.release.record import ReleaseRecord, read_release_record
from llm_pipeline.reporting.spending import read_spending

HOST = {"quantization_host": {"accelerator": "h100-80gb", "count": 2}}
NONE = "\N{EN DASH}"
PRICES = {"gpu_hour_prices": {"h100-80gb": 3.0}, "currency": "EUR"}


def record_with(tmp_path, **deployment) -> ReleaseRecord:
    history = History(tmp_path)
    record = read_release_record(history.store, history.resolve(1))
    changed = Deployment.model_validate(record.deployment.model_dump() | deployment)
    return record.model_copy(update={"deployment": changed})


def result(stage: str, subject: str = "", *, seconds: float = 1800.0, reused: bool = False) -> StageResult:
    timings = Timings(started_at=datetime.now(UTC), total_seconds=seconds)
    return StageResult(release_id="r", stage=stage, subject=subject, key="0" * 64, reused=reused, timings=timings)


@pytest.mark.parametrize(
    ("deployment", "gpu_hours", "price"),
    [(HOST | PRICES, 1.0, 3.0), (HOST, 1.0, None), (PRICES, 0.0, 0.0)],
    ids=["priced", "no price", "no GPU"],
)
def test_a_stage_costs_its_seconds_by_its_gpus_by_their_price(tmp_path, deployment, gpu_hours, price):
    cost = release_cost(record_with(tmp_path, **deployment), [result("quantize", "fp8"), result("download")])
    assert (cost.seconds, cost.gpu_hours, cost.price) == (3600.0, gpu_hours, price)


@pytest.mark.parametrize(("variant", "gpus"), [(None, 1), ("two_gpus", 2)])
def test_what_was_chosen_keeps_the_gpus_of_its_variant_busy_and_a_trial_those_of_its_own(tmp_path, variant, gpus):
    record = record_with(tmp_path, **PRICES)
    (target,) = record.release.targets
    on_gpus = {"accelerator": "h100-80gb", "accelerator_count": 1, "engine": "vllm"}
    several = target.model_copy(update={**on_gpus, "variants": {"two_gpus": {"tensor_parallel_size": 2}}})
    record = record.model_copy(update={"release": record.release.model_copy(update={"targets": (several,)})})
    chosen = result("choose", target.name, seconds=0.0).model_copy(update={"metrics": {"variant": variant}})
    served = [result("load_test", target.name), result("canary", f"{target.name}:50")]
    trials = [result("load_test", f"{target.name}:fp8"), result("load_test", f"{target.name}:fp8:two_gpus")]
    assert release_cost(record, [chosen, *served]).gpu_hours == pytest.approx(0.5 * gpus * len(served))
    assert release_cost(record, [chosen, *trials]).gpu_hours == pytest.approx(0.5 * 3)


@pytest.mark.parametrize("planned", [True, False])
def test_the_report_s_rows_hold_what_was_planned_beside_it(tmp_path, planned):
    record = record_with(tmp_path, **HOST, **PRICES)
    plan = [PlannedStage(stage="quantize", subject="fp8", seconds=600.0, price=1.0)] if planned else []
    results = [result("quantize", "fp8"), result("baseline", reused=True)]
    rows = read_spending(record, results, plan).rows
    assert [tuple(row.model_dump(exclude={"verdict"}).values()) for row in rows] == [
        ("quantize fp8", 1.0, "30 min", "10 min" if planned else NONE, "1.000", "3.00", "1.00" if planned else NONE),
        ("baseline", 0.0, "reused", NONE, NONE, NONE, NONE),
        ("all", None, "30 min", "", "1.000", "3.00", ""),
    ]
