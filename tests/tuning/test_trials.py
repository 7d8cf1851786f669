"""What a trial makes of failures; whole trials are run on the demo's releases."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from llm_pipeline.adapters.openai.adapter import OpenAiServer
from llm_pipeline.base.errors import (
    ErrorDocument,
    PipelineError,
    RemoteStageError,
    StageCrashed,
    Unsupported,
    from_document,
)
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.server_place import ServerModel
from llm_pipeline.config.target import Target
from llm_pipeline.serving.triton_server import ServerFailed
from llm_pipeline.tuning.sweep import Trial
from llm_pipeline.tuning.trials import TrialBench

CPU = Target(name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu")


def reported(kind: str, message: str) -> PipelineError:
    """An error of a stage's process, as the runner tells of it."""
    return from_document(
        ErrorDocument.model_validate(
            {"type": kind, "family": "terminal", "message": message, "where": "", "hint": "", "exit_code": 5}
        )
    )


def trial(monkeypatch: pytest.MonkeyPatch, failure: PipelineError) -> Trial:
    def package(*_: object) -> None:
        raise failure

    monkeypatch.setattr(TrialBench, "_package", package)
    bench = TrialBench(
        SimpleNamespace(
            release=SimpleNamespace(target=lambda _: CPU), place=lambda _: SimpleNamespace(staging=ServerModel())
        ),
        "cpu",
        SimpleNamespace(),
    )
    return bench.measure({"limits.maximum_sequences": 64})


@pytest.mark.parametrize(
    ("failure", "trouble"),
    [
        (reported("BuildFailed", "CUDA out of memory: tried to allocate 3 GiB"), "out of memory"),
        (reported("OutOfMemory", "too little device memory"), "out of memory"),
        (StageCrashed("the stage's process ended without a result (killed, or out of memory)"), "out of memory"),
        (ServerFailed("no free blocks in the KV cache"), "preemption"),
        (ServerFailed("illegal instruction"), "failed"),
    ],
)
def test_a_failure_of_the_settings_is_a_trial_with_its_trouble(monkeypatch, failure, trouble):
    found = trial(monkeypatch, failure)
    assert (found.trouble, found.highest_rate_per_second) == (trouble, 0.0)
    assert found.detail


def test_a_failure_that_no_setting_changes_ends_the_sweep(monkeypatch):
    with pytest.raises(RemoteStageError, match="the store is gone"):
        trial(monkeypatch, reported("ConfigError", "the store is gone"))


def test_a_server_that_somebody_else_starts_is_not_tuned():
    endpoint = Endpoint(url="http://vllm.example.com:8000", openai_model="llm")
    flow = SimpleNamespace(place=lambda _: SimpleNamespace(staging=OpenAiServer(kind="openai", endpoint=endpoint)))
    with pytest.raises(Unsupported, match="takes no settings from here"):
        TrialBench(flow, "cpu", SimpleNamespace())
