"""TensorRT-LLM on a real tritonserver: the repository of an engine, and the LLM API's model.

Doubles are the model that runs the engine, and the LLM API's package.
"""

from __future__ import annotations

import asyncio
import json
import queue
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from served import ask, leave, metric, post, stop
from waiting import until

pytest.importorskip("tritonclient")

from google.protobuf import text_format
from tritonclient import grpc
from tritonclient.grpc import model_config_pb2

from llm_pipeline.artifacts.golden import GoldenPrompt, read_golden
from llm_pipeline.config.policy import StagingPolicy
from llm_pipeline.serving.client import GenerationClient, GenerationRequest
from llm_pipeline.serving.probes import probe
from llm_pipeline.serving.repository_links import read_links

pytestmark = pytest.mark.slow

DOUBLES = Path(__file__).parents[2] / "doubles"
ANSWERS = {
    "which colour?": "The moon is red, said the cat.",
    "characters": "é 日本 😀 done",
    "a long story": "so it went on and on " * 60,
}
GOLDEN = [
    GoldenPrompt(prompt=one, completion=ANSWERS[one], maximum_tokens=40) for one in ("which colour?", "characters") * 10
]


@pytest.fixture(scope="module")
def engine(gpu_engine, byte_tokenizer):
    engine, target = gpu_engine("tensorrt_llm_engine")
    shutil.copytree(byte_tokenizer, engine / "tokenizer")
    (engine / "config.json").write_text('{"pretrained_config": {"logits_dtype": "float16"}, "build_config": {}}')
    (engine / "rank0.engine").write_bytes(b"plan")
    return engine, target


@pytest.fixture(scope="module")
def repository(engine, package):
    return package(*engine, GOLDEN)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    path = tmp_path_factory.mktemp("answers") / "answers.json"
    path.write_text(json.dumps(ANSWERS))
    return path


@pytest.fixture(scope="module")
def serve(repository, engine, start, answers):
    served = shutil.copytree(repository, answers.with_name("repository"))
    path = served / "tensorrt_llm/config.pbtxt"
    config = text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
    config.backend = "python"
    path.write_text(text_format.MessageToString(config))
    links = {"tensorrt_llm/1/engine": engine[0], "tensorrt_llm/1/model.py": DOUBLES / "triton_engine_model/model.py"}
    environment = {"ENGINE_DOUBLE_COMPLETIONS": str(answers), "ENGINE_DOUBLE_SECONDS_PER_TOKEN": "0.005"}
    return lambda: start(served, answers, links=links, environment=environment)


@pytest.fixture(scope="module")
def server(serve):
    return serve()


@pytest.fixture(scope="module")
def llmapi_server(gpu_engine, package, start, bytes_checkpoint, answers):
    engine, target = gpu_engine("tensorrt_llm_llmapi")
    (engine / "llm_args.yaml").write_text("backend: pytorch\nmax_batch_size: 4\n")
    double = DOUBLES / "tensorrt_llm_package/tensorrt_llm"
    links = {"llm/1/checkpoint": bytes_checkpoint, "llm/1/tensorrt_llm": double}  # beside model.py: it is imported
    environment = {"TRTLLM_DOUBLE_COMPLETIONS": str(answers), "TRTLLM_DOUBLE_SECONDS_PER_TOKEN": "0.005"}
    return start(package(engine, target, GOLDEN), answers, environment=environment, links=links)


@pytest.fixture(params=["server", "llmapi_server"])
def either(request):
    return request.getfixturevalue(request.param)


def asking(prompt="which colour?", maximum_tokens=40, **options):
    return GenerationRequest(prompt=prompt, maximum_tokens=maximum_tokens, **options)


def test_the_engine_is_linked_and_not_copied(repository):
    assert list(read_links(repository)) == ["tensorrt_llm/1/engine"]
    assert not list(repository.rglob("*.engine"))


def test_the_golden_prompts_and_every_other_probe_pass(either):
    judgement = asyncio.run(probe(either.endpoint, read_golden(either.repository), StagingPolicy()))
    assert judgement.verdict == "GO", judgement


def test_an_answer_ends_at_its_limit_or_before_its_stop_word(either):
    assert len(ask(either, asking(), verb="stream").chunk_seconds) > 5
    limited = ask(either, asking(maximum_tokens=8))
    assert (limited.text, limited.output_tokens, limited.finish_reason) == ("The moon", 8, "length")
    for verb in ("generate", "stream"):
        stopped = ask(either, asking(stop=("never", "said")), verb=verb)
        assert (stopped.text, stopped.finish_reason) == ("The moon is red, ", "stop")
        assert stopped.output_tokens < len(ANSWERS["which colour?"])


def test_what_fails_in_the_engine_is_an_error_and_never_a_text(server):
    failed = metric(server, 'llm_requests_total{outcome="failed"')
    status, answer = post(server, {"text_input": "fail now", "max_tokens": 4})
    assert (status, json.loads(answer)) == (400, {"error": "failed: tensorrt_llm: no more memory"})
    assert metric(server, 'llm_requests_total{outcome="failed"') == failed + 1
    status, answer = post(server, {"text_input": " ", "max_tokens": 4})
    assert (status, json.loads(answer)["error"]) == (400, "invalid: text_input is empty")


def test_requests_run_side_by_side(server):
    answers = ask(server, *[asking("a long story", 200, ignore_eos=True) for _ in range(6)], verb="stream")
    assert {answer.output_tokens for answer in answers} == {200}
    assert max(answer.total_seconds for answer in answers) < 0.5 * sum(answer.total_seconds for answer in answers)


def test_a_client_that_leaves_frees_its_place(either):
    before, tokens = metric(either, 'llm_requests_total{outcome="cancelled"'), metric(either, "llm_tokens_total")

    leave(either, asking("a long story", 490, ignore_eos=True))
    until(lambda: metric(either, "llm_active_requests") == 0)
    assert metric(either, 'llm_requests_total{outcome="cancelled"') == before + 1
    assert metric(either, "llm_tokens_total") < tokens + 490


def test_what_nobody_waits_for_is_stopped_in_the_engine_too(server):
    stopped = metric(server, "engine_double_stopped_total")
    for verb in ("generate", "stream"):
        ask(server, asking(stop=("never", "said")), verb=verb)
    leave(server, asking("a long story", 490, ignore_eos=True))
    until(lambda: metric(server, "engine_double_stopped_total") == stopped + 3)


def test_streams_of_clients_that_want_only_the_text_end_no_server(server):
    """Triton 24.10 prunes the other outputs without Python's lock: it ended a busy server within 32 such requests."""

    def stream(count):
        answers = queue.SimpleQueue()
        client = grpc.InferenceServerClient(f"127.0.0.1:{server.ports.grpc}")
        client.start_stream(lambda result, error: answers.put((result, error)))
        try:
            assert [text(client, answers) for _ in range(count)] == [ANSWERS["a long story"][:100]] * count
        finally:
            client.stop_stream(cancel_requests=True)

    def text(client, answers):
        client.async_stream_infer("llm", inputs, outputs=only_text, enable_empty_final_response=True)
        pieces, last = [], False
        while not last:
            result, error = answers.get(timeout=30)
            assert error is None
            pieces += [piece.decode() for piece in result.as_numpy("text_output").reshape(-1)]
            last = result.get_response().parameters["triton_final_response"].bool_param
        return "".join(pieces)

    only_text = [grpc.InferRequestedOutput("text_output")]
    inputs = []
    for name, kind, value in [
        ("text_input", "BYTES", np.array([b"a long story"], object)),
        ("max_tokens", "INT64", np.array([100], np.int64)),
        ("stream", "BOOL", np.array([True])),
    ]:
        inputs.append(grpc.InferInput(name, value.shape, kind))
        inputs[-1].set_data_from_numpy(value)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(stream, [8] * 8))


def test_clients_of_the_classic_set_are_answered_and_streams_have_whole_characters(server):
    asked = {"text_input": "characters", "max_tokens": 60, "exclude_input_in_output": True, "stop_words": ["x", "yz"]}
    for model in ("ensemble", "tensorrt_llm_bls"):
        status, answer = post(server, asked, model=model)
        assert (status, json.loads(answer).get("text_output")) == (200, ANSWERS["characters"])
    asked |= {"stream": True, "guided_decoding_guide_type": "regex", "guided_decoding_guide": "é.*"}
    status, answer = post(server, asked, model="tensorrt_llm_bls", verb="generate_stream")
    pieces = [json.loads(line[5:])["text_output"] for line in answer.splitlines() if line.startswith("data:")]
    assert (status, "".join(pieces)) == (200, ANSWERS["characters"])
    assert not any("\ufffd" in piece for piece in pieces)
    status, answer = post(server, {**asked, "image_url_input": "http://x/y.png"}, model="tensorrt_llm_bls")
    assert (status, "not image_url_input" in answer) == (400, True)


def test_a_server_that_stops_ends_its_live_streams_and_leaves_in_time(serve):
    stopped, endings = serve(), []

    async def watch():
        async with GenerationClient.of(stopped.endpoint) as client:
            endings.append(await client.stream(asking("a long story", 490, ignore_eos=True)))

    watching = threading.Thread(target=lambda: asyncio.run(watch()))
    try:
        watching.start()
        until(lambda: metric(stopped, "llm_active_requests") == 1)
    finally:
        started = time.monotonic()
        stop(stopped)
    assert time.monotonic() - started < 15
    watching.join(timeout=10)
    assert not watching.is_alive()
    assert endings[0].ok == (endings[0].text == ANSWERS["a long story"][:490]), "a part is told from the whole"
