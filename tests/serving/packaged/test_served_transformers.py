"""A checkpoint served by Transformers on a real tritonserver."""

from __future__ import annotations

import json

import pytest
from served import ask, eventually, leave, metric, ports_from, post

pytest.importorskip("tritonclient")

from llm_pipeline.artifacts.engine_description import EngineDescription, EngineFacts
from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.target import EngineLimits, Target
from llm_pipeline.serving.client import GenerationRequest
from llm_pipeline.serving.model_repository import write_repository
from llm_pipeline.serving.triton_server import start_server, stop_server

pytestmark = pytest.mark.slow

TARGET = Target(
    name="cpu", accelerator="cpu", accelerator_count=0, engine="transformers_torch",
    limits=EngineLimits(maximum_sequences=3, maximum_queued_requests=4, maximum_tokens_per_request=1024),
    serving={"cancellation_check_milliseconds": 20},
)  # fmt: skip
PROPERTIES = {
    "device": "cpu", "dtype": "float32", "attention": "paged|sdpa", "cuda_graphs": "false", "threads": "1",
}  # fmt: skip
PROMPT = "the cat sees a red moon"
REF = ArtifactRef(kind="checkpoint", digest="c" * 64)


def describe(engine, checkpoint=REF):
    facts = EngineFacts(
        builder="transformers_torch", bytes=0, weight_format="native", quantization=None, kv_cache="float32",
        context_length=1024, device="a CPU", versions={"transformers": "5.5.4"}, seconds={},
    )  # fmt: skip
    EngineDescription(facts=facts, target=TARGET, runtime_properties=PROPERTIES, checkpoint=checkpoint).write(engine)


def package(engine, destination):
    golden = [GoldenPrompt(prompt=PROMPT, completion="?", maximum_tokens=4)]
    ref = ArtifactRef(kind="engine", digest="e" * 64)
    return write_repository(engine, golden, {"weight_format": "native"}, TARGET, destination, engine_ref=ref)


@pytest.fixture(scope="module")
def server(tiny_engine, model_python, triton_home, tmp_path_factory):
    place = tmp_path_factory.mktemp("transformers")
    describe(place)
    package(place, place / "repository")
    state = place / "staging"
    yield start_server(
        place / "repository", ports_from(18580), triton_home=triton_home,
        python=model_python, state=state, links={"llm/1/checkpoint": tiny_engine.parent / "checkpoint"},
        environment={"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    stop_server(state)


def asking(prompt=PROMPT, maximum_tokens=24, **options):
    return GenerationRequest(prompt=prompt, maximum_tokens=maximum_tokens, allow_empty=True, **options)


def told(server):
    """Its own metrics, for a test that fails."""
    return {name: metric(server, name) for name in ("llm_kv_cache_usage", "llm_active_requests")}


def test_a_streamed_answer_is_the_whole_answer_in_pieces_in_any_company(server):
    requests = [asking(f"{PROMPT} {number}", ignore_eos=True) for number in range(5)]
    alone = ask(server, requests[0])
    whole, pieces = ask(server, *requests), ask(server, *requests, verb="stream")
    assert [answer.error for answer in [*whole, *pieces]] == [""] * 10
    assert [answer.text for answer in whole] == [answer.text for answer in pieces]
    assert whole[0].text == alone.text
    assert {answer.output_tokens for answer in [*whole, *pieces]} == {24}
    assert {answer.finish_reason for answer in pieces} == {"length"}
    assert max(len(answer.chunk_seconds) for answer in pieces) > 5  # a client that is starved reads several as one


def test_an_answer_ends_before_its_stop_word(server):
    full = ask(server, asking(maximum_tokens=40, ignore_eos=True)).text
    for verb in ("generate", "stream"):
        answer = ask(server, asking(maximum_tokens=40, ignore_eos=True, stop=("never there", full[7:10])), verb=verb)
        assert (answer.finish_reason, answer.text) == ("stop", full[: full.index(full[7:10])])
    assert eventually(lambda: metric(server, "llm_kv_cache_usage") == 0), told(server)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"text_input": " "}, "text_input is empty"),
        ({"max_tokens": 1024}, "max_tokens 1024 is not in 1..1023"),
        ({"max_tokens": 1023}, "exceed 1024"),
        ({"temperature": 0.5}, "decodes greedily"),
        ({"stop": [""]}, "none of them empty"),
    ],
)
def test_a_senseless_request_is_the_callers_mistake(change, reason, server):
    status, answer = post(server, {"text_input": PROMPT, "max_tokens": 4, **change})
    assert (status, reason in json.loads(answer)["error"]) == (400, True), answer


def test_more_requests_than_the_queue_holds_are_refused_as_unavailable(server):
    answers = ask(server, *[asking(maximum_tokens=200, ignore_eos=True) for _ in range(12)], verb="stream")
    refused = [answer for answer in answers if "queue full" in answer.error]
    answered = [answer.output_tokens for answer in answers if answer.ok]
    assert 1 <= len(refused) <= 5  # on a slow host some come only when others have ended
    assert answered == [200] * (12 - len(refused))


def test_a_client_that_leaves_frees_its_place_and_its_cache(server):
    before = metric(server, 'llm_requests_total{outcome="cancelled"')
    tokens, prompts = metric(server, "llm_tokens_total"), metric(server, "llm_input_tokens_total")

    leave(server, asking(maximum_tokens=900, ignore_eos=True))
    assert eventually(lambda: metric(server, "llm_active_requests") == 0)
    assert metric(server, 'llm_requests_total{outcome="cancelled"') == before + 1
    assert metric(server, "llm_tokens_total") < tokens + 900
    assert metric(server, "llm_input_tokens_total") > prompts
    assert eventually(lambda: metric(server, "llm_kv_cache_usage") == 0), told(server)
    assert ask(server, asking()).ok


def test_an_engine_that_names_no_checkpoint_is_not_packaged(tmp_path):
    describe(tmp_path, checkpoint=None)
    with pytest.raises(IntegrityError, match="names no checkpoint"):
        package(tmp_path, tmp_path / "repository")
