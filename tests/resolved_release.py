"""Releases that were resolved for one target, their records and deployments, and requests of their stages."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llm_pipeline.artifacts.pinned import PinnedModel
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.policy import LoadTestPolicy, Policy, ServiceLevel
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.release import Approval, Baseline, Evaluation, ModelSource, ResolvedRelease
from llm_pipeline.config.target import Target
from llm_pipeline.config.workload import Workload
from llm_pipeline.release.contract import StageRequest
from llm_pipeline.release.record import ReleaseRecord, release_record_name
from llm_pipeline.store.artifact_store import ArtifactStore


def tiny_release(**changes: Any) -> ResolvedRelease:
    """One target and one recipe; it needs nobody's approval."""
    level = ServiceLevel(first_token_milliseconds=100.0, end_to_end_milliseconds=500.0)
    fields: dict[str, Any] = {
        "name": "tiny",
        "description": "one target, one recipe",
        "baseline": Baseline(dtype="bfloat16"),
        "model": ModelSource(id="demo/tiny"),
        "recipes": (QuantizationRecipe(name="none", weights="none"),),
        "targets": (Target(name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu"),),
        "policy": Policy(name="demo", load_test=LoadTestPolicy(service_level=level)),
        "evaluation": Evaluation(tasks=("arithmetic",), served_tasks=("arithmetic",)),
        "workload": Workload(prompts="prompts.jsonl", rate_per_second=20.0, duration_seconds=60.0),
        "approval": Approval(required=False),
        "drill": None,
    }
    return ResolvedRelease(**fields | changes)


def pinned(model_id: str, **changes: Any) -> PinnedModel:
    """A model at some commit."""
    return PinnedModel(id=model_id, **{"commit": "0a1b2c3d" * 5, "files": (), "license": "mit", **changes})


def deployment_below(root: Path, **changes: Any) -> Deployment:
    """A deployment without environments and places, with its store and directories below one."""
    directories = {
        "work_root": str(root / "work"),
        "state_root": str(root / "state"),
        "triton_home": str(root / "triton"),
    }
    fields = {"name": "here", "store": f"file://{root / 'store'}", "environments": {}, **directories}
    return Deployment.model_validate(fields | changes)


def request_below(root: Path, stage: str, config: Any, **changes: Any) -> StageRequest:
    """A request of the release `r1`, with the store and the work below one directory."""
    fields = {"release_id": "r1", "store": f"file://{root / 'store'}"}
    return StageRequest(stage=stage, config=config, **{**fields, "work_root": str(root / "work"), **changes})


def record_of(deployment: Deployment, release_id: str, **changes: Any) -> ReleaseRecord:
    """The record of a tiny release that was resolved just now."""
    fields = {"release": tiny_release(), "model": pinned("demo/tiny"), "datasets": {}, "created_at": datetime.now(UTC)}
    return ReleaseRecord(release_id=release_id, deployment=deployment, **{**fields, **changes})


def resolve(store: ArtifactStore, release_id: str, *, model: str = "demo/tiny") -> None:
    """Write the record, if there is none."""
    if store.read_document(release_record_name(release_id)) is not None:
        return
    record = record_of(
        deployment_below(Path("/"), store=store.uri),
        release_id,
        release=tiny_release(model=ModelSource(id=model)),
        model=pinned(model),
    )
    store.write_document(release_record_name(release_id), record.model_dump(mode="json"), None)
