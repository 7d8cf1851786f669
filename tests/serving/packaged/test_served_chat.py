"""A release with a chat format, through a real engine behind a real tritonserver: what is sent is what was judged."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from served import ports_from, post

pytest.importorskip("tritonclient")

from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.target import EngineLimits, Target
from llm_pipeline.serving.model_repository import write_repository
from llm_pipeline.serving.triton_server import start_server, stop_server
from llm_pipeline.store import open_store

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

ROOT = Path(__file__).parents[3]
TARGET = Target(
    name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu",
    limits=EngineLimits(maximum_sequences=4, maximum_queued_requests=64, kv_cache_blocks=64),
)  # fmt: skip
FIRST_PORT = 18700 + 10 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("chat")


@pytest.fixture(scope="module")
def in_model_environment(model_python):
    def run(*arguments: str) -> None:
        command = [str(model_python), "-W", "ignore", str(Path(__file__).with_name("chat_release.py")), *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        subprocess.run(command, check=True, env=environment, stdout=sys.stderr, timeout=600)

    return run


@pytest.fixture(scope="module")
def repository(directory, in_model_environment):
    """The repository of the engine, published: its artifact and its files."""
    in_model_environment("make", str(directory))
    golden = [GoldenPrompt(prompt="the cat", completion="?", maximum_tokens=4)]
    written = directory / "repository"
    engine_ref = ArtifactRef(kind="engine", digest="e" * 64)
    write_repository(directory / "engine", golden, {"weight_format": "native"}, TARGET, written, engine_ref=engine_ref)
    return open_store(f"file://{directory}/store").publish("model_repository", written), written


@pytest.fixture(scope="module")
def server(directory, repository, model_python, triton_home):
    ref, files = repository
    ports = ports_from(FIRST_PORT)
    state = directory / "slot"
    yield start_server(files, ports, triton_home=triton_home, python=model_python, state=state, digest=ref.digest)
    stop_server(state)


@pytest.fixture(scope="module")
def compared(directory, repository, server, in_model_environment):
    in_model_environment("score", str(directory), server.http_url, repository[0].digest)
    return json.loads((directory / "compared.json").read_text())


def test_prompts_are_served_token_by_token_as_lm_eval_itself_writes_them(compared, server):
    assert len(compared["served"]) == len(compared["harness"]) == 60
    for number, (prompt, tokens, _) in compared["harness"].items():
        sent = compared["served"][number][0]
        assert prompt == f"<s>{sent}", "the server's tokenizer begins with the token that the template wrote"
        assert sent == f"[user]the cat sees {number}[/][assistant]"
        assert compared["engine tokens"][number] == tokens
        assert compared["plain tokens"][number] != tokens
        status, answer = post(server, {"text_input": sent, "max_tokens": 1, "temperature": 0.0, "stream": False})
        assert status == 200
        assert json.loads(answer)["input_tokens"] == len(tokens)


def test_answers_and_scores_are_those_of_lm_eval_and_of_the_checkpoint(compared):
    """The weights are random and large: one token more or less in a prompt changes the whole answer."""
    expected = {number: answer for number, (_, _, answer) in compared["harness"].items()}
    assert {number: answer for number, (_, answer, _) in compared["checkpoint"].items()} == expected
    served = {number: answer for number, (_, answer, _) in compared["served"].items()}
    assert {number: shown(answer) for number, answer in served.items()} == {
        number: shown(answer) for number, answer in expected.items()
    }
    assert len(set(expected.values())) > 30
    alike = [number for number in expected if served[number] == expected[number]]
    assert len(alike) > 50
    assert [compared["served"][number][2] for number in alike] == [float(int(number) % 3 > 0) for number in alike]
    assert compared["verdict"] == "GO", compared["summary"]


def shown(answer: str) -> str:
    """Tokens are bytes here, and runtimes show broken characters as one or as several."""
    return re.sub("\N{REPLACEMENT CHARACTER}+", "\N{REPLACEMENT CHARACTER}", answer)
