"""The LLM API's model on a real tritonserver, with the double of TensorRT-LLM behind it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from served import ask, eventually, leave, metric, ports_from, post

pytest.importorskip("tritonclient")

from llm_pipeline.artifacts.golden import GoldenPrompt, read_golden
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.policy import StagingPolicy
from llm_pipeline.serving.client import GenerationRequest
from llm_pipeline.serving.model_repository import write_repository
from llm_pipeline.serving.probes import probe
from llm_pipeline.serving.triton_server import start_server, stop_server

pytestmark = pytest.mark.slow

DOUBLE = Path(__file__).parents[2] / "doubles/tensorrt_llm_package/tensorrt_llm"
ANSWERS = {
    "which colour?": "The moon is red, said the cat.",
    "characters": "é 日本 😀 done",
    "a long story": "so it went on and on " * 60,
}
SECONDS_PER_TOKEN = 0.005


@pytest.fixture(scope="module")
def repository(gpu_engine, tmp_path_factory):
    engine, target = gpu_engine("tensorrt_llm_llmapi")
    (engine / "llm_args.yaml").write_text("backend: pytorch\nmax_batch_size: 4\n")
    golden = [GoldenPrompt(prompt="which colour?", completion=ANSWERS["which colour?"], maximum_tokens=40)] * 20
    destination = tmp_path_factory.mktemp("llmapi") / "repository"
    ref = ArtifactRef(kind="engine", digest="e" * 64)
    write_repository(engine, golden, {"quantization": "FP8"}, target, destination, engine_ref=ref)
    return destination


@pytest.fixture(scope="module")
def serve(repository, bytes_checkpoint, model_python, triton_home, tmp_path_factory):
    answers = tmp_path_factory.mktemp("answers") / "answers.json"
    answers.write_text(json.dumps(ANSWERS))
    links = {
        "llm/1/checkpoint": bytes_checkpoint,
        "llm/1/tensorrt_llm": DOUBLE,
    }  # what is beside model.py can be imported

    def serve(state, first_port, **environment):
        environment |= {
            "TRTLLM_DOUBLE_COMPLETIONS": str(answers),
            "TRTLLM_DOUBLE_SECONDS_PER_TOKEN": str(SECONDS_PER_TOKEN),
        }
        ports = ports_from(first_port, answers)
        return start_server(
            repository, ports, triton_home=triton_home, python=model_python, state=state, environment=environment,
            links=links,
        )  # fmt: skip

    return serve


@pytest.fixture(scope="module")
def server(serve, tmp_path_factory):
    state = tmp_path_factory.mktemp("slot") / "llmapi"
    yield serve(state, 18560)
    stop_server(state)


def asking(prompt="which colour?", maximum_tokens=40, **options):
    return GenerationRequest(prompt=prompt, maximum_tokens=maximum_tokens, **options)


def test_the_golden_prompts_and_every_other_probe_pass(server, repository):
    endpoint = server.endpoint
    judgement = asyncio.run(probe(endpoint, read_golden(repository), StagingPolicy()))
    assert judgement.verdict == "GO", judgement


def test_a_streamed_answer_is_the_whole_answer_in_pieces(server):
    for prompt, text in list(ANSWERS.items())[:2]:
        whole, pieces = ask(server, asking(prompt)), ask(server, asking(prompt), verb="stream")
        assert whole.text == pieces.text == text
        assert whole.output_tokens == pieces.output_tokens == len(text.encode())
        assert (whole.finish_reason, pieces.finish_reason) == ("stop", "stop")
        assert len(pieces.chunk_seconds) > 5


def test_an_answer_ends_at_its_limit_or_before_its_stop_word(server):
    limited = ask(server, asking(maximum_tokens=8))
    assert (limited.text, limited.output_tokens, limited.finish_reason) == ("The moon", 8, "length")
    for verb in ("generate", "stream"):
        stopped = ask(server, asking(stop=("never", "said")), verb=verb)
        assert (stopped.text, stopped.finish_reason) == ("The moon is red, ", "stop")
        assert stopped.output_tokens < len(ANSWERS["which colour?"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"text_input": " "}, "text_input is empty"),
        ({"max_tokens": 0}, "max_tokens 0 is not in 1..511"),
        ({"text_input": "x" * 510}, "prompt of 510 tokens and max_tokens 4 exceed 512"),
        ({"temperature": 3}, "temperature 3 is not in 0..2"),
        ({"stop": [""]}, "none of them empty"),
    ],
)
def test_a_senseless_request_is_the_callers_mistake(change, reason, server):
    status, answer = post(server, {"text_input": "which colour?", "max_tokens": 4, **change})
    assert (status, reason in json.loads(answer)["error"]) == (400, True), answer


def test_more_requests_than_the_queue_holds_are_refused_as_unavailable(server):
    answers = ask(server, *[asking("a long story", 400, ignore_eos=True) for _ in range(14)], verb="stream")
    refused = [answer for answer in answers if "queue is full" in answer.error]
    assert len(refused) == 6
    assert all(answer.output_tokens == 400 for answer in answers if answer.ok)
    assert eventually(lambda: metric(server, "llm_active_requests") == 0)


def test_a_client_that_leaves_frees_its_place(server):
    before, tokens = metric(server, 'llm_requests_total{outcome="cancelled"'), metric(server, "llm_tokens_total")

    leave(server, asking("a long story", 490, ignore_eos=True))
    assert eventually(lambda: metric(server, "llm_active_requests") == 0)
    assert metric(server, 'llm_requests_total{outcome="cancelled"') == before + 1
    assert metric(server, "llm_tokens_total") < tokens + 490


def test_a_drill_delays_every_first_token(serve, tmp_path):
    drilled = serve(tmp_path / "drilled", 18564, LLM_PIPELINE_DRILL=json.dumps({"delay_milliseconds": 400}))
    answers = ask(drilled, *[asking() for _ in range(3)], verb="stream")
    stop_server(tmp_path / "drilled")
    assert min(answer.first_token_seconds for answer in answers) >= 0.4
