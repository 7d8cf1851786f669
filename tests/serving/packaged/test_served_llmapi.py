"""The LLM API's model on a real tritonserver, with the double of TensorRT-LLM behind it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from served import ask, eventually, leave, metric

pytest.importorskip("tritonclient")

from llm_pipeline.artifacts.golden import GoldenPrompt, read_golden
from llm_pipeline.config.policy import StagingPolicy
from llm_pipeline.serving.client import GenerationRequest
from llm_pipeline.serving.probes import probe

pytestmark = pytest.mark.slow

DOUBLE = Path(__file__).parents[2] / "doubles/tensorrt_llm_package/tensorrt_llm"
ANSWERS = {
    "which colour?": "The moon is red, said the cat.",
    "characters": "é 日本 😀 done",
    "a long story": "so it went on and on " * 60,
}


@pytest.fixture(scope="module")
def server(gpu_engine, package, start, bytes_checkpoint, tmp_path_factory):
    engine, target = gpu_engine("tensorrt_llm_llmapi")
    (engine / "llm_args.yaml").write_text("backend: pytorch\nmax_batch_size: 4\n")
    golden = [GoldenPrompt(prompt="which colour?", completion=ANSWERS["which colour?"], maximum_tokens=40)] * 20
    answers = tmp_path_factory.mktemp("answers") / "answers.json"
    answers.write_text(json.dumps(ANSWERS))
    links = {"llm/1/checkpoint": bytes_checkpoint, "llm/1/tensorrt_llm": DOUBLE}  # beside model.py: it is imported
    environment = {"TRTLLM_DOUBLE_COMPLETIONS": str(answers), "TRTLLM_DOUBLE_SECONDS_PER_TOKEN": "0.005"}
    return start(package(engine, target, golden), answers, environment=environment, links=links)


def asking(prompt="which colour?", maximum_tokens=40, **options):
    return GenerationRequest(prompt=prompt, maximum_tokens=maximum_tokens, **options)


def test_the_golden_prompts_and_every_other_probe_pass(server):
    judgement = asyncio.run(probe(server.endpoint, read_golden(server.repository), StagingPolicy()))
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


def test_a_client_that_leaves_frees_its_place(server):
    before, tokens = metric(server, 'llm_requests_total{outcome="cancelled"'), metric(server, "llm_tokens_total")

    leave(server, asking("a long story", 490, ignore_eos=True))
    assert eventually(lambda: metric(server, "llm_active_requests") == 0)
    assert metric(server, 'llm_requests_total{outcome="cancelled"') == before + 1
    assert metric(server, "llm_tokens_total") < tokens + 490
