"""Recipes whose checkpoint somebody else quantized, from a hub to the repository that a server loads."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")

import yaml
from huggingface_hub import constants
from local_hub import TOKEN_VARIABLE, serve_local_hub
from ready_checkpoints import make_ready

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.demo.hub import publish_revision
from llm_pipeline.release.contract import StageFailure, StageResult
from llm_pipeline.release.execute import execute
from llm_pipeline.release.loading import load_release
from llm_pipeline.release_progress import ReleaseProgress, resolve_request

ROOT = Path(__file__).parents[2]
TARGET = {
    "accelerator": "cpu", "accelerator_count": 0, "engine": "vllm", "environment": "model",
    "limits": {"maximum_sequences": 4, "maximum_tokens_per_request": 128, "maximum_batched_tokens": 64},
    "runtime": {"kv_cache": {"free_memory_fraction": 0.4}},
}  # fmt: skip


class Site:
    """A release of the demo's model with ready checkpoints, whose stages run in this process."""

    def __init__(self, root: Path, hub, source: Path) -> None:
        self.root, self.hub, self.source = Path(shutil.copytree(ROOT / "configs", root / "configs")), hub, source
        self.path = self.root / "releases" / "demo.yaml"
        self.publish("demo/tiny-llama", source)
        (self.root / "targets" / "cpu.yaml").write_text(yaml.safe_dump(TARGET))
        self.write(
            self.root / "deployments" / "local.yaml",
            hub={"endpoint": hub.endpoint, "token_variable": TOKEN_VARIABLE},
            environments={"control": str(ROOT / ".envs/control/bin/python"), "model": sys.executable},
        )
        self.write(
            self.root / "policies" / "demo.yaml", accuracy={"margin": 0.05, "task_margin": 0.1, "minimum_items": 100}
        )
        evaluation = yaml.safe_load(self.path.read_text())["evaluation"] | {"limit": 150}
        self.write(self.path, evaluation=evaluation, baseline={"dtype": "float16"})

    def write(self, path: Path, **fields) -> None:
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | fields))

    def publish(self, name: str, directory: Path) -> str:
        card = directory / "README.md"
        card.write_text("---\nlicense: apache-2.0\n---\n")
        return publish_revision(self.hub.root, name, directory, "upload")

    def recipes(self, **sources: str) -> None:
        for name, source in sources.items():
            (self.root / "quantization" / f"{name}.yaml").write_text(yaml.safe_dump({"source": source}))
        self.write(self.path, recipes=list(sources))

    def resolve(self):
        outcome = execute(resolve_request(load_release(self.path)))
        self.release = getattr(outcome, "release_id", "")
        return outcome

    @property
    def flow(self) -> ReleaseProgress:
        return ReleaseProgress.open(load_release(self.path).deployment, self.release)

    def run(self, stage: str, subject: str = ""):
        return execute(self.flow.request(stage, subject))


@pytest.fixture
def site(tmp_path, source, monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # the scorer's module, imported by other tests, sets it
    with serve_local_hub(tmp_path) as hub:
        yield Site(tmp_path, hub, Path(shutil.copytree(source, tmp_path / "model")))


@pytest.fixture
def ready(tmp_path, source):
    """Makes a checkpoint of the model by a method of another tool."""

    def make(method: str) -> Path:
        return make_ready(method, source, tmp_path / method)

    return make


@pytest.mark.slow
@pytest.mark.skipif(find_spec("compressed_tensors") is None, reason="needs the package compressed-tensors")
def test_a_ready_checkpoint_is_pinned_published_as_an_export_judged_and_chosen(site, ready):
    commit = site.publish("else/tiny-w8a8", ready("compressed-tensors"))
    site.recipes(w8a8="else/tiny-w8a8")
    resolved = site.resolve()
    assert isinstance(resolved, StageResult), resolved
    assert resolved.metrics["commit_of_w8a8"] == site.flow.record.checkpoints["w8a8"].commit == commit
    assert site.flow.record.facts.ready["w8a8"].stored_format == "compressed-tensors W8A8"
    site.publish("else/tiny-w8a8", site.source)  # the branch moves on: the release does not
    done = {}
    for stage, subject in (
        ("eval_data", ""), ("download", ""), ("baseline", ""), ("quantize", "w8a8"), ("accuracy", "w8a8"),
        ("choose", "cpu"),
    ):  # fmt: skip
        done[stage] = site.run(stage, subject)
        assert isinstance(done[stage], StageResult), (stage, done[stage])
    made = done["quantize"]
    assert made.artifacts["checkpoint"].kind == "checkpoint"
    assert made.metrics["commit"] == commit
    assert 0.3 < made.metrics["size_ratio"] < 0.8
    assert site.run("quantize", "w8a8").reused
    assert done["accuracy"].judgement.verdict is Verdict.GO, done["accuracy"].judgement
    assert site.flow.chosen_recipe("cpu") == "w8a8"


def test_a_checkpoint_with_another_vocabulary_or_template_ends_with_one_clear_error(site, ready):
    directory = ready("compressed-tensors")
    settings = directory / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "chat_template": "{{ messages }}"}))
    site.publish("else/tiny-w8a8", directory)
    site.recipes(w8a8="else/tiny-w8a8")
    assert isinstance(site.resolve(), StageResult)
    assert isinstance(site.run("download"), StageResult)
    failure = site.run("quantize", "w8a8")
    assert isinstance(failure, StageFailure)
    assert "its chat template is another one" in failure.error.message


def test_what_no_scorer_reads_is_refused_before_anything_is_fetched(site, ready):
    site.publish("else/tiny-gptq", ready("gptq"))
    site.recipes(gptq="else/tiny-gptq")
    failure = site.resolve()
    assert isinstance(failure, StageFailure)
    assert "scorer hf reads plain weights, modelopt's formats and compressed-tensors only" in failure.error.message
    assert "evaluation.scorer: vllm" in failure.error.message
