"""`llm-pipeline render`: launch plan and manifests of a release that the store holds."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from resolved_release import pinned, record_of

from llm_pipeline.base.errors import ExitCode
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.cli import main
from llm_pipeline.release.contract import StageResult, Timings
from llm_pipeline.release.execute import results_name
from llm_pipeline.release.loading import load_release
from llm_pipeline.release.record import release_record_name
from llm_pipeline.store import open_store

ROOT = Path(__file__).parents[2]
RELEASE_ID = "llama-3.3-70b-instruct-0e9e39f2-5b1c77aa"
IMAGE = f"registry.example.com/serving@sha256:{'a' * 64}"
STAGES = (
    ("choose", "h200_tp2", {"recipe": "fp8_chat"}, {}),
    ("quantize", "fp8_chat", {}, {"checkpoint": ArtifactRef(kind="checkpoint", digest="c" * 64)}),
    ("build", "h200_tp2", {}, {"engine": ArtifactRef(kind="engine", digest="e" * 64)}),
    ("package", "h200_tp2", {}, {"repository": ArtifactRef(kind="model_repository", digest="f" * 64)}),
)


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    """A deployment file, with a store that holds one packaged release."""
    loaded = load_release(ROOT / "configs/releases/llama-3.3-70b-instruct.yaml")
    store = open_store(f"file://{tmp_path}/store")
    model = pinned(loaded.release.model.id, commit="0e9e39f2" * 5, license="llama3.3")
    record = record_of(loaded.deployment, RELEASE_ID, release=loaded.release, model=model)
    store.write_document(release_record_name(RELEASE_ID), record.model_dump(mode="json"), None)
    timings = Timings(started_at=datetime.now(UTC), total_seconds=1.0)
    for stage, subject, metrics, artifacts in STAGES:
        result = StageResult(
            release_id=RELEASE_ID, stage=stage, subject=subject, key="0" * 64, metrics=metrics, artifacts=artifacts,
            timings=timings,
        )  # fmt: skip
        store.write_document(results_name(RELEASE_ID, stage, subject), result.model_dump(mode="json"), None)
    path = tmp_path / "deployment.yaml"
    places = {"work_root": "work", "state_root": "state", "triton_home": "triton", "environments": {}}
    path.write_text(yaml.safe_dump({"store": store.uri, **places}))
    return path


def render(deployment: Path, *arguments: str) -> int:
    return main(
        ["render", "llama-3.3-70b", "-d", str(deployment), "--output", str(deployment.parent / "out"), *arguments]
    )


def test_a_packaged_release_is_rendered_with_its_digests(deployment, capsys):
    options = deployment.parent / "options.yaml"
    options.write_text(f"namespace: chat\nimage: {IMAGE}\nclaims: [{{claim: store, path: {deployment.parent}}}]\n")
    assert render(deployment, "--target", "h200_tp2", "--options", str(options)) == ExitCode.GO
    written = capsys.readouterr()
    out = deployment.parent / "out"
    assert written.err == ""
    assert [Path(line) for line in written.out.split()] == [
        out / "launch_plan.json",
        *(out / "kubernetes" / f"{kind}.yaml" for kind in ("deployment", "service", "podmonitor")),
        *(out / "kubernetes" / f"{kind}.yaml" for kind in ("poddisruptionbudget", "horizontalpodautoscaler")),
    ]
    metadata = yaml.safe_load((out / "kubernetes/deployment.yaml").read_text())["metadata"]
    assert metadata["namespace"] == "chat"
    assert metadata["annotations"] == {
        "llm-pipeline/release": RELEASE_ID,
        "llm-pipeline/model": "meta-llama/Llama-3.3-70B-Instruct",
        "llm-pipeline/repository-digest": "f" * 64,
        "llm-pipeline/engine-digest": "e" * 64,
        "llm-pipeline/checkpoint-digest": "c" * 64,
    }
    plan = json.loads((out / "launch_plan.json").read_text())
    assert (plan["mode"], plan["gpus_per_node"]) == ("single", 2)
    arguments = ("--target", "h200_tp2", "--options", str(options), "--image", "registry.example.com/serving:1")
    assert render(deployment, *arguments) == ExitCode.GO
    assert "may move" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "--target is needed"),
        (("--target", "h300"), "no target 'h300'"),
        (("--target", "h200_tp4", "--image", IMAGE), "has no result of"),
        (("--target", "h200_tp2", "--image", IMAGE), "pods do not reach the store"),
    ],
)
def test_what_cannot_be_rendered_ends_with_one_error_and_writes_nothing(deployment, capsys, arguments, reason):
    assert render(deployment, *arguments) != ExitCode.GO
    assert reason in capsys.readouterr().err
    assert not (deployment.parent / "out").exists()
