"""Staging, load test and staging down on a server of OpenAI's completions that somebody else runs."""

import asyncio
import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_pipeline.base.errors import PipelineError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.config.target import Target
from llm_pipeline.loadtest.outcome import read_outcome
from llm_pipeline.release.contract import StageFailure, StageRequest, StageResult
from llm_pipeline.release.execute import execute
from llm_pipeline.serving.client import GenerationClient, GenerationRequest
from llm_pipeline.serving.endpoint_access import require_model
from llm_pipeline.store import open_store

sys.path.insert(0, str(Path(__file__).parents[1]))

from openai_server import CONTEXT, KEY, OpenAiDouble

ROOT = Path(__file__).parents[2]
VLLM_PYTHON = "LLM_PIPELINE_VLLM_PYTHON"
START_SECONDS = 1800.0


class Release:
    """One release's requests, on somebody's server."""

    def __init__(self, root: Path, endpoint: Endpoint, *, prompts: list[str], context: int) -> None:
        self.root, self.endpoint, self.context = root, endpoint, context
        self.store = open_store(f"file://{root}/store")
        self.prompts = self._publish("dataset", "p.jsonl", [{"prompt": prompt} for prompt in prompts])
        self.repository = self._publish("model_repository", "golden.jsonl", asyncio.run(self._golden(prompts[:20])))

    def _publish(self, kind: str, name: str, rows: list[dict[str, Any]]) -> ArtifactRef:
        directory = self.root / kind
        directory.mkdir()
        (directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return self.store.publish(kind, directory)

    async def _golden(self, prompts: list[str]) -> list[dict[str, Any]]:
        """What the server answers now, as if it had been judged."""
        async with GenerationClient.of(self.endpoint) as client:
            answers = [await client.generate(GenerationRequest(prompt, 8)) for prompt in prompts]
        texts = zip(prompts, answers, strict=True)
        return [{"prompt": prompt, "completion": answer.text, "max_tokens": 8} for prompt, answer in texts]

    def run(self, stage: str, config: dict[str, Any], **inputs: ArtifactRef) -> StageResult | StageFailure:
        request = StageRequest(
            release_id="r1", stage=stage, subject="cpu", config=config, inputs=inputs, store=self.store.uri,
            work_root=str(self.root / "work"),
        )  # fmt: skip
        return execute(request)

    @property
    def slot(self) -> dict[str, Any]:
        target = load_yaml(ROOT / "configs/targets/cpu.yaml", Target).model_dump(mode="json")
        target["limits"]["maximum_tokens_per_request"] = self.context
        place = {"kind": "openai", "endpoint": self.endpoint.model_dump(mode="json")}
        return {"place": place, "state": str(self.root / "slot"), "release_name": "demo", "served": target}

    def stage(self) -> StageResult | StageFailure:
        config = {**self.slot, "policy": {"ready_timeout_seconds": 20}}
        return self.run("staging", config, repository=self.repository)

    def load_test(self) -> StageResult | StageFailure:
        config = {
            "endpoint": self.endpoint.model_dump(mode="json"),
            "repository_digest": self.repository.digest,
            "users": 4,
            "workload": {"prompts": "p.jsonl", "rate_per_second": 4, "duration_seconds": 10,
                         "output_tokens": [8, 8]},
            "policy": {"service_level": {"first_token_milliseconds": 60000, "end_to_end_milliseconds": 60000},
                       "maximum_client_lag_milliseconds": 500, "attainment": 0.6, "windows": 6,
                       "search": {"maximum_multiple": 2, "window_seconds": 5, "minimum_requests": 20}},
            "staging": {"ready_timeout_seconds": 20},
        }  # fmt: skip
        return self.run("load_test", config, prompts=self.prompts, repository=self.repository)


def test_a_release_is_staged_on_somebodys_server_and_no_record_has_its_key(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TEST_KEY", KEY)
    with OpenAiDouble(key=KEY) as server:
        endpoint = Endpoint(
            url=server.url, metrics_url=server.metrics_url, openai_model="llm", api_key_variable="TEST_KEY"
        )
        release = Release(tmp_path, endpoint, prompts=[f"w{n} v{n} u{n}" for n in range(24)], context=CONTEXT)
        staged = release.stage()
        assert isinstance(staged, StageResult), staged
        assert staged.judgement.verdict is Verdict.GO, staged.judgement.summary
        assert release.run("staging_down", release.slot).metrics["was_running"] == 1
        assert release.run("staging_down", release.slot).metrics["was_running"] == 0
        assert asyncio.run(release._golden(["it runs on"]))[0]["completion"]
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert KEY.encode() not in written
    assert KEY not in caplog.text
    assert KEY not in staged.model_dump_json()


def vllm_python() -> str:
    """The interpreter that has vLLM: named by a variable, or this one."""
    named = os.environ.get(VLLM_PYTHON, "")
    if not named and importlib.util.find_spec("vllm") is None:
        pytest.skip(f"vLLM is not installed here: name an interpreter that has it in {VLLM_PYTHON}")
    return named or sys.executable


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """`vllm serve` of a small random Llama, behind an API key."""
    python, root = vllm_python(), tmp_path_factory.mktemp("vllm")
    model = ROOT / "tests" / "stages" / "random_llama.py"
    subprocess.run([python, model, root / "model"], check=True, capture_output=True, timeout=300)
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    command = [
        python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(root / "model"), "--host", "127.0.0.1",
        "--port", str(port), "--served-model-name", "llm", "--dtype", "bfloat16", "--max-model-len", "512",
        "--enforce-eager", "--generation-config", "vllm", "--max-num-batched-tokens", "512", "--max-num-seqs", "4",
        "--gpu-memory-utilization", "0.2", "--disable-uvicorn-access-log",
    ]  # fmt: skip
    environment = {
        **os.environ, "VLLM_API_KEY": KEY, "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "HOME": str(root),
    }  # fmt: skip
    environment.pop("PYTHONPATH", None)
    endpoint = Endpoint(
        url=f"http://127.0.0.1:{port}", metrics_url=f"http://127.0.0.1:{port}/metrics", openai_model="llm",
        api_key_variable="TEST_KEY",
    )  # fmt: skip
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TEST_KEY", KEY)
            _await(process, endpoint, root / "log")
            yield endpoint
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        process.wait(60)


def _await(process: "subprocess.Popen[bytes]", endpoint: Endpoint, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            require_model(endpoint)
        except PipelineError:
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(1)
        else:
            return


@pytest.mark.thorough
def test_a_release_goes_through_staging_and_load_test_on_a_real_vllm(vllm: Endpoint, tmp_path):
    release = Release(tmp_path, vllm, prompts=[f"w{n} w{2 * n} w{3 * n}" for n in range(40)], context=512)
    staged = release.stage()
    assert isinstance(staged, StageResult), staged
    assert staged.judgement.verdict is Verdict.GO, staged.judgement.summary
    measured = release.load_test()
    assert isinstance(measured, StageResult), measured
    outcome = read_outcome(release.store.fetch(measured.artifacts["load_test"]))
    assert {window.failed for window in outcome.windows} == {0}
    target = outcome.window("target")
    assert target.requests >= 40
    assert target.server.output_tokens in {None, 8 * target.requests}, "a busy host may not read the metrics in time"
    assert release.run("staging_down", release.slot).metrics["was_running"] == 1
