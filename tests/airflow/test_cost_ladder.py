"""A release by cost tries every candidate that passed, and releases the cheapest: stages that do no work."""

from __future__ import annotations

import logging

import pytest

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.inspection.comparison import compare
from llm_pipeline.loadtest.outcome import TokenCost
from llm_pipeline.local_run import LocalRun
from llm_pipeline.release.loading import load_release
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.reporting.collect import collect
from llm_pipeline.reporting.html import render_report
from llm_pipeline.store.references import ReleaseReference

pytestmark = pytest.mark.usefixtures("in_process")

RELEASE = "tiny-01234567-00000000"
CHAIN = ("build", "package", "staging", "served_accuracy", "load_test", "staging_down")


def by_cost(project):
    project.edit("releases/tiny", "approval: {", "ladder: { objective: cost }\napproval: {")
    project.edit("targets/cpu-a", "openvino_cpu", "openvino_cpu, variants: { kv: { KV_CACHE_PRECISION: u8 } }")
    project.add("deployments/here", "gpu_hour_prices: { cpu: 0.1 }\n")
    return project


def costs(**candidates: float) -> dict[str, dict]:
    return {
        f"load_test/{name.replace('_', ':').replace('cpu:', 'cpu-')}": {
            "metrics": {
                "output_tokens_per_second": 1e5 / 3600 / cost,
                **TokenCost(estimate=cost, lower=cost - 0.01, upper=cost + 0.01, currency="USD").metrics,
            }
        }
        for name, cost in candidates.items()
    }


COSTS = costs(
    cpu_a_small=0.50, cpu_a_small_kv=0.30, cpu_a_large=0.60, cpu_a_large_kv=0.60, cpu_b_small=0.40, cpu_b_large=0.41
)


def flow_of(project) -> ReleaseProgress:
    return ReleaseProgress.open(load_release(project.config).deployment, RELEASE)


def test_each_candidate_goes_through_the_whole_chain_and_the_cheapest_is_released(project, in_process, caplog):
    in_process.ran.clear()
    by_cost(project).script(**COSTS)
    with caplog.at_level(logging.INFO, logger="llm_pipeline.run"):
        assert LocalRun(project.config, approve=lambda _: True).run() is Verdict.GO
    tried = [subject for stage, subject in in_process.ran if stage == "build"]
    lanes = ["cpu-a:small", "cpu-b:small", "cpu-a:small:kv", "cpu-a:large", "cpu-b:large", "cpu-a:large:kv"]
    assert tried == [*lanes, "cpu-a", "cpu-b"]
    for candidate in lanes:
        assert [stage for stage, subject in in_process.ran if subject == candidate] == [*CHAIN]

    flow = flow_of(project)
    chosen = {target: flow.result("choose", target).metrics for target in flow.targets}
    assert {target: (told["recipe"], told["variant"]) for target, told in chosen.items()} == {
        "cpu-a": ("small", "kv"),
        "cpu-b": ("large", None),  # 0.40 is not shown to be less than 0.41, and large is the smaller change
    }
    assert flow.target("cpu-a").runtime.engine_args == {"KV_CACHE_PRECISION": "u8"}
    for stage in ("build", "package", "served_accuracy", "load_test"):  # what was chosen is not made once more
        assert flow.result(stage, "cpu-a").reused
        assert flow.result(stage, "cpu-a").key == flow.result(stage, "cpu-a:small:kv").key

    data = collect(flow.store, RELEASE)
    assert [(row.target, row.name) for row in data.candidates if row.chosen] == [
        ("cpu-a", "small with kv"),
        ("cpu-b", "large"),
    ]
    assert len(data.candidates) == len(lanes)
    page = " ".join(render_report(data).split())
    assert "recipe small with kv on cpu-a; large on cpu-b" in page
    assert '0.3 USD<span class="detail">0.29 to 0.31</span>' in page
    lines = "\n".join(compare(flow.store, *2 * (ReleaseReference(RELEASE),)).lines())
    assert lines.endswith(": the same")


def test_a_candidate_that_fails_is_left_out_and_one_whose_recipe_failed_is_not_tried(project, in_process, caplog):
    in_process.ran.clear()
    failing = {
        "accuracy/small": {"verdict": "NO_GO"},
        "build/cpu-a:large:kv": {"error": "terminal"},
        "served_accuracy/cpu-b:large": {"verdict": "NO_GO"},
    }
    by_cost(project).script(**COSTS, **failing)
    with caplog.at_level(logging.INFO, logger="llm_pipeline.run"):
        assert LocalRun(project.config, approve=lambda _: True).run() is Verdict.NO_GO
    assert "cpu-a:small is skipped: small has not passed its accuracy gate" in caplog.text
    assert "build cpu-a:large:kv failed, the next one is tried" in caplog.text
    flow = flow_of(project)
    assert flow.chosen_recipe("cpu-a") == "large"
    chosen = flow.result("choose", "cpu-a").judgement
    assert "large with kv failed: build failed: ConfigError: the test asked for" in chosen.summary
    assert flow.result("choose", "cpu-b").metrics["recipe"] is None
    stopped = {subject for stage, subject in in_process.ran if stage == "staging_down"}
    assert stopped == {"cpu-a:large", "cpu-b:large", "cpu-a"}
    assert {subject for stage, subject in in_process.ran if stage == "settle"} == {"cpu-a"}
