from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.policy import LoadTestPolicy, Policy, ServiceLevel
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.release import Approval, Baseline, Evaluation, ModelSource, ResolvedRelease, Workload
from llm_pipeline.config.target import Target
from llm_pipeline.flow import Flow, MissingResult
from llm_pipeline.hub.pinned import PinnedModel
from llm_pipeline.release_record import ReleaseRecord
from llm_pipeline.stages.canary import CanaryConfig
from llm_pipeline.stages.contract import ArtifactRef, StageResult, Timings
from llm_pipeline.stages.execute import results_name
from llm_pipeline.store import ArtifactStore, open_store

MORNING = datetime(2026, 1, 5, 9, tzinfo=UTC)
REPOSITORY = ArtifactRef(kind="model_repository", digest="a" * 64)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return open_store(f"file://{tmp_path}/store")


def flow(store: ArtifactStore, resolved_at: datetime) -> Flow:
    servers: dict[str, Any] = {
        name: {"http": first, "grpc": first + 1, "metrics": first + 2}
        for name, first in (("staging", 18540), ("blue", 18543), ("green", 18546))
    }
    level = ServiceLevel(first_token_milliseconds=100.0, end_to_end_milliseconds=500.0)
    record = ReleaseRecord(
        release_id="r1",
        release=ResolvedRelease(
            name="r",
            description="one target, one recipe",
            baseline=Baseline(dtype="bfloat16"),
            model=ModelSource(id="demo/tiny"),
            recipes=(QuantizationRecipe(name="none", weights="none"),),
            targets=(Target(name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu"),),
            policy=Policy(name="demo", load_test=LoadTestPolicy(service_level=level)),
            evaluation=Evaluation(tasks=("arithmetic",), served_tasks=("arithmetic",)),
            workload=Workload(prompts="prompts.jsonl", rate_per_second=20.0, duration_seconds=60.0),
            approval=Approval(),
            drill=None,
        ),
        deployment=Deployment.model_validate(
            {
                "name": "here",
                "store": store.uri,
                "work_root": "/work",
                "state_root": "/state",
                "environments": {"model": "/model/python"},
                "triton_home": "/triton",
                "places": {"cpu": {**servers, "router": {"port": 18550, "admin_port": 18551}}},
            }
        ),
        model=PinnedModel(id="demo/tiny", commit="0a1b2c3d" * 5, files=(), license="mit"),
        datasets={},
        created_at=resolved_at,
    )
    return Flow(store, record)


def packaged(store: ArtifactStore) -> None:
    result = StageResult(
        release_id="r1",
        stage="package",
        subject="cpu",
        key="k" * 64,
        artifacts={"repository": REPOSITORY},
        timings=Timings(started_at=MORNING, total_seconds=1.0),
    )
    store.write_document(results_name("r1", "package", "cpu"), result.model_dump(mode="json"), None)


def canary(store: ArtifactStore, resolved_at: datetime, percent: str) -> CanaryConfig:
    return CanaryConfig.model_validate(flow(store, resolved_at).request("canary", f"cpu:{percent}").config)


def test_a_canary_step_is_told_its_share_and_its_repository(store) -> None:
    packaged(store)
    request = flow(store, MORNING).request("canary", "cpu:25")
    assert CanaryConfig.model_validate(request.config).step_percent == 25.0
    assert request.inputs == {"repository": REPOSITORY}


def test_all_canary_steps_of_one_run_know_the_same_run_and_the_next_run_is_another(store) -> None:
    packaged(store)
    runs = [canary(store, MORNING, percent).run for percent in ("5", "25", "100")]
    assert runs == [MORNING.isoformat()] * 3
    assert canary(store, MORNING + timedelta(seconds=1), "5").run not in ("", runs[0])


def test_a_canary_before_its_package_is_refused(store) -> None:
    with pytest.raises(MissingResult, match="package cpu"):
        flow(store, MORNING).request("canary", "cpu:5")
