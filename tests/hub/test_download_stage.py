from __future__ import annotations

from pathlib import Path

from llm_pipeline.hub.access import Hub
from llm_pipeline.hub.hub_source import HubSource
from llm_pipeline.release.contract import StageFailure, StageRequest, StageResult
from llm_pipeline.release.execute import execute
from llm_pipeline.store import open_store

from .conftest import TOKEN_VARIABLE, LocalHub


def request(local_hub: LocalHub, hub: Hub, tmp_path: Path, *, endpoint: str | None = None) -> StageRequest:
    model = HubSource(hub).resolve("demo/tiny", "main")
    return StageRequest(
        release_id="test",
        stage="download",
        config={
            "model_id": model.id,
            "commit": model.commit,
            "files": [file.model_dump(mode="json") for file in model.files],
            "hub": {"endpoint": endpoint or local_hub.endpoint, "token_variable": TOKEN_VARIABLE},
        },
        store=(tmp_path / "store").as_uri(),
        work_root=str(tmp_path / "work"),
    )


def test_the_stage_publishes_exactly_the_verified_files(local_hub: LocalHub, hub: Hub, tmp_path: Path) -> None:
    local_hub.publish()
    result = execute(request(local_hub, hub, tmp_path))
    assert isinstance(result, StageResult), result
    checkpoint = open_store((tmp_path / "store").as_uri()).fetch(result.artifacts["checkpoint"])
    names = {path.name for path in checkpoint.rglob("*") if path.is_file() and not path.name.startswith("_")}
    assert names == {"config.json", "model.safetensors", "tokenizer.json"}
    assert result.metrics["files"] == 3
    assert result.metrics["bytes"] == result.metrics["fetched_bytes"]


def test_the_same_files_from_another_address_are_reused(local_hub: LocalHub, hub: Hub, tmp_path: Path) -> None:
    local_hub.publish()
    first = execute(request(local_hub, hub, tmp_path))
    again = execute(request(local_hub, hub, tmp_path, endpoint="http://127.0.0.1:9"))
    assert isinstance(first, StageResult)
    assert isinstance(again, StageResult)
    assert again.reused
    assert again.key == first.key


def test_a_refusal_reaches_the_result_with_its_hint(local_hub: LocalHub, hub: Hub, tmp_path: Path) -> None:
    local_hub.publish()
    asked = request(local_hub, hub, tmp_path)
    local_hub.restrict("demo/tiny", gated="manual")
    failure = execute(asked)
    assert isinstance(failure, StageFailure)
    assert failure.error.type == "RepositoryGated"
    assert failure.error.family == "terminal"
    assert TOKEN_VARIABLE in failure.error.hint
