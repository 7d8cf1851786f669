"""The packaged engine on a real tritonserver."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from served import ask, eventually, metric, ports_from, post, settled

pytest.importorskip("tritonclient")

from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.target import EngineLimits, Target
from llm_pipeline.serving.client import GenerationClient, GenerationRequest
from llm_pipeline.serving.model_repository import write_repository
from llm_pipeline.serving.triton_server import start_server, stop_server

pytestmark = pytest.mark.slow

TARGET = Target(
    name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu",
    limits=EngineLimits(maximum_sequences=4, maximum_queued_requests=4, kv_cache_blocks=64),
)  # fmt: skip
CONTEXT = 128
PROMPT = "the cat sees a red moon"


@pytest.fixture(scope="module")
def repository(tiny_engine, tmp_path_factory):
    destination = tmp_path_factory.mktemp("packaged") / "repository"
    golden = [GoldenPrompt(prompt=PROMPT, completion="?", maximum_tokens=4)]
    ref = ArtifactRef(kind="engine", digest="e" * 64)
    write_repository(tiny_engine, golden, {"weight_format": "native"}, TARGET, destination, engine_ref=ref)
    return destination


def serve(repository, state, first_port, model_python, triton_home, environment=None):  # noqa: PLR0917
    ports = ports_from(first_port)
    return start_server(
        repository, ports, triton_home=triton_home, python=model_python, state=state, environment=environment
    )


@pytest.fixture(scope="module")
def server(repository, model_python, triton_home, tmp_path_factory):
    state = tmp_path_factory.mktemp("slot") / "staging"
    yield serve(repository, state, 18500, model_python, triton_home)
    stop_server(state)


@pytest.fixture(scope="module")
def drilled(repository, model_python, triton_home, tmp_path_factory):
    state = tmp_path_factory.mktemp("slot") / "drilled"
    drill = json.dumps({"delay_milliseconds": 400})
    yield serve(repository, state, 18504, model_python, triton_home, {"LLM_PIPELINE_DRILL": drill})
    stop_server(state)


def asking(prompt=PROMPT, maximum_tokens=24, **options):
    return GenerationRequest(prompt=prompt, maximum_tokens=maximum_tokens, **options)


def test_a_streamed_answer_is_the_whole_answer_in_pieces(server):
    requests = [asking(f"{PROMPT} {number}", ignore_eos=True, allow_empty=True) for number in range(12)]
    whole = ask(server, *requests[:8])
    pieces = ask(server, *requests[:8], verb="stream")
    assert [answer.error for answer in [*whole, *pieces]] == [""] * 16
    assert [answer.text for answer in whole] == [answer.text for answer in pieces]
    assert {answer.output_tokens for answer in [*whole, *pieces]} == {24}
    assert {answer.finish_reason for answer in pieces} == {"length"}
    assert all(len(answer.chunk_seconds) > 5 for answer in pieces)


def test_characters_of_several_tokens_are_never_split(server):
    requests = [asking(f"é 日本 😀 {number}", 100, ignore_eos=True, allow_empty=True) for number in range(4)]
    whole, pieces = ask(server, *requests), ask(server, *requests, verb="stream")
    assert [answer.text for answer in whole] == [answer.text for answer in pieces]


def test_the_same_request_has_the_same_greedy_answer_in_any_company(server):
    alone = ask(server, asking()).text
    company = ask(server, *[asking(f"{PROMPT} {number}") for number in range(7)], asking())
    assert company[-1].text == alone


def test_an_answer_ends_before_its_stop_word(server):
    full = ask(server, asking(maximum_tokens=40, ignore_eos=True)).text
    word = full[7:10]
    for verb in ("generate", "stream"):
        answer = ask(server, asking(maximum_tokens=40, ignore_eos=True, stop=("never there", word)), verb=verb)
        assert answer.finish_reason == "stop"
        assert answer.text == full[: full.index(word)]
        assert answer.output_tokens < 40


def test_a_stop_word_that_never_comes_changes_nothing(server):
    full = ask(server, asking(maximum_tokens=40, ignore_eos=True))
    stopped = ask(server, asking(maximum_tokens=40, ignore_eos=True, stop=(full.text[-1] + "~never",)), verb="stream")
    assert stopped.text == full.text
    assert stopped.finish_reason == "length"


def test_temperature_samples(server):
    answers = ask(server, *[asking(temperature=1.5, ignore_eos=True, allow_empty=True) for _ in range(6)])
    assert all(answer.ok for answer in answers)
    assert len({answer.text for answer in answers}) > 1


def answered(server, verb="generate", **change):
    """The answer's fields; of a stream put together from its pieces."""
    asked = {"text_input": PROMPT, "max_tokens": 16, "ignore_eos": True, "stream": verb != "generate", **change}
    status, text = post(server, asked, verb=verb)
    assert status == 200, text
    lines = [line.removeprefix("data:") for line in text.splitlines() if line.strip()]
    pieces = [json.loads(line) for line in lines]
    return {
        "text": "".join(piece["text_output"] for piece in pieces),
        "tokens": sum(piece["output_tokens"] for piece in pieces),
        "reason": pieces[-1]["finish_reason"],
        "logprobs": [entry for piece in pieces for entry in json.loads(piece.get("logprobs", "[]"))],
        "pieces": len(pieces),
    }


@pytest.fixture(scope="module")
def tokens_of(tiny_engine):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tiny_engine / "tokenizer.json"))
    return lambda text: tokenizer.encode(text).ids


def test_a_seed_gives_the_same_answer_in_any_company(server):
    asked = {"temperature": 1.2, "seed": -7}
    alone = answered(server, **asked)["text"]
    with ThreadPoolExecutor(4) as threads:
        changes = [asked, {**asked, "seed": 8}, {"temperature": 1.5}, {"echo": True, "logprobs": 1}]
        together = list(threads.map(lambda change: answered(server, **change)["text"], changes))
    assert together[0] == alone
    assert together[1] != alone


@pytest.mark.parametrize("change", [{"top_k": 1}, {"top_p": 0.01}, {"min_p": 0.99}])
def test_what_leaves_only_the_likeliest_token_is_greedy(change, server):
    greedy = answered(server)["text"]
    assert answered(server, temperature=1.5, seed=1)["text"] != greedy
    assert answered(server, temperature=1.5, seed=1, **change)["text"] == greedy


def test_penalties_change_a_repeating_answer(server):
    asked = {"temperature": 1.0, "seed": 3, "max_tokens": 60, "top_k": 20}
    plain = answered(server, **asked)["text"]
    for penalty in ({"presence_penalty": 2}, {"frequency_penalty": 2}, {"repetition_penalty": 1.8}):
        assert answered(server, **asked, **penalty)["text"] != plain


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
@pytest.mark.parametrize("most", [0, 3])
def test_logprobs_are_those_of_the_answers_tokens(verb, most, server):
    answer = answered(server, verb, logprobs=most)
    assert len(answer["logprobs"]) == answer["tokens"] == 16
    assert b"".join(bytes(one["bytes"]) for one in answer["logprobs"]).decode(errors="replace") == answer["text"]
    assert (answer["pieces"] > 1) == (verb == "generate_stream" and most == 0)
    assert all(len(one["top"]) == most and one["logprob"] < 0 for one in answer["logprobs"])
    if most:
        assert all(one["top"][0] == [one["token"], one["logprob"]] for one in answer["logprobs"]), "greedy"
        chosen = answered(server, logprobs=0)["logprobs"]
        assert [one["logprob"] for one in chosen] == pytest.approx(
            [one["logprob"] for one in answer["logprobs"]], abs=1e-4
        )


def test_an_echo_tells_how_likely_the_prompt_is_in_any_company(server):
    answer = answered(server)
    asked = {"text_input": PROMPT + answer["text"], "max_tokens": 0, "echo": True, "logprobs": 1}
    whole = {"text_input": PROMPT, "echo": True, "logprobs": 1}
    with ThreadPoolExecutor(4) as threads:
        changes = [whole, {"max_tokens": 60, "temperature": 1.0}, whole, {"max_tokens": 60}]
        first, _, second, _ = threads.map(lambda change: answered(server, **change), changes)
    assert first == second
    assert first["text"] == PROMPT + answer["text"]
    prompt, rest = first["logprobs"][:-16], first["logprobs"][-16:]
    assert prompt[0]["logprob"] is None
    assert all(one["logprob"] <= one["top"][0][1] for one in prompt[1:])
    assert [one["logprob"] for one in rest] == [one["top"][0][1] for one in rest]
    only = answered(server, **asked | {"text_input": PROMPT})
    assert (only["text"], only["tokens"], only["reason"]) == (PROMPT, 0, "length")
    assert only["logprobs"] == prompt
    assert answered(server, echo=True, max_tokens=2)["text"].startswith(PROMPT)


def test_a_prompt_may_be_tokens(server, tokens_of):
    text = answered(server, logprobs=0, echo=True, max_tokens=0)["logprobs"]
    assert "".join(one["token"] for one in text) == "<s>" + PROMPT
    ids = tokens_of(PROMPT)
    assert answered(server, text_input="", input_ids=ids)["text"] == answered(server)["text"]
    assert answered(server, text_input="", input_ids=ids, echo=True)["text"].startswith(PROMPT)
    bare = answered(server, text_input="", input_ids=ids[1:])["text"]
    assert answered(server, add_special_tokens=False)["text"] == bare


def test_an_answer_may_take_all_the_room_that_is_left(server, tokens_of):
    answer = answered(server, max_tokens=-1)
    assert (answer["tokens"], answer["reason"]) == (CONTEXT - len(tokens_of(PROMPT)), "length")


def test_an_answer_follows_a_schema(server):
    schema = {"type": "object", "properties": {"moons": {"type": "integer"}}, "required": ["moons"]}
    schema |= {"additionalProperties": False}
    asked = {"json_schema": json.dumps(schema), "ignore_eos": False, "max_tokens": 100}
    assert isinstance(json.loads(answered(server, **asked)["text"])["moons"], int)
    likely = answered(server, **asked, logprobs=2)
    assert [one["logprob"] for one in likely["logprobs"]] != [one["top"][0][1] for one in likely["logprobs"]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"text_input": ""}, "text_input is empty"),
        ({"text_input": "   "}, "text_input is empty"),
        ({"max_tokens": 0}, "max_tokens 0 is not in 1..127"),
        ({"max_tokens": CONTEXT}, "max_tokens 128 is not in 1..127"),
        ({"text_input": "red moon " * 200}, "exceed 128"),
        ({"max_tokens": CONTEXT - 1}, "exceed 128"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"max_tokens": 2**32 + 5}, "max_tokens 4294967301 is not in 1..127"),
        ({"max_tokens": -2}, "max_tokens -2"),
        ({"top_p": 0}, "top_p 0 is not in 1e-06..1"),
        ({"top_p": 1.5}, "top_p 1.5"),
        ({"min_p": 1e39}, "min_p inf"),
        ({"top_k": -1}, "top_k -1"),
        ({"presence_penalty": -2.5}, "presence_penalty -2.5"),
        ({"frequency_penalty": 3}, "frequency_penalty 3"),
        ({"repetition_penalty": 0}, "repetition_penalty 0"),
        ({"logprobs": 21}, "logprobs 21 is not in 0..20"),
        ({"input_ids": [5]}, "text_input and input_ids"),
        ({"text_input": "", "input_ids": [5, 384]}, "input_ids: tokens are in 0..383"),
        ({"text_input": "", "input_ids": [-1]}, "input_ids: tokens are in 0..383"),
        ({"json_schema": "[" * 10_000}, "json_schema is not a JSON object"),
        ({"json_schema": '{"type": "nonsense"}'}, 'json_schema: Unsupported type "nonsense"'),
        ({"best_of": 2}, "best_of: not supported"),
        ({"parameters": {"runtime_top_k": 4, "n": 1}}, "n, runtime_top_k: not supported"),
        ({"stop": [""]}, "none of them empty"),
        ({"stop": ["x"] * 9}, "at most 8"),
    ],
)
def test_a_senseless_request_is_the_callers_mistake(change, reason, server):
    before = metric(server, 'llm_requests_total{outcome="invalid"')
    status, answer = post(server, {"text_input": PROMPT, "max_tokens": 4, **change})
    assert status == 400
    assert reason in json.loads(answer)["error"]
    assert metric(server, 'llm_requests_total{outcome="invalid"') == before + 1


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        {"max_tokens": 4},
        {"text_input": 3},
        {"text_input": ["a", "b"]},
        {"text_input": "a", "max_tokens": "x"},
        {"text_input": "a", "seed": 2**63},
    ],
)
def test_a_malformed_request_is_refused_and_the_server_lives_on(body, server):
    status, answer = post(server, body)
    assert status in {400, 500}  # Triton's own front end says 500 to JSON that it cannot map to tensors
    assert json.loads(answer)["error"]
    assert ask(server, asking()).ok


def test_a_client_that_leaves_frees_its_place(server):
    before = metric(server, 'llm_requests_total{outcome="cancelled"')

    async def leave():
        async with GenerationClient.of(server.endpoint) as client:
            asked = [asking(f"{PROMPT} {n}", 100, ignore_eos=True) for n in range(8)]
            opening = [asyncio.create_task(client.open_stream(request)) for request in asked]
            await asyncio.wait(opening, return_when=asyncio.FIRST_COMPLETED)  # half of them still wait for a place
            for task in opening:
                task.cancel()

    def noticed() -> bool:  # an answer this short may be complete before Triton notices that its client has left
        asyncio.run(leave())
        assert eventually(lambda: metric(server, "llm_active_requests") == 0, seconds=20)
        return metric(server, 'llm_requests_total{outcome="cancelled"') > before

    assert eventually(noticed, seconds=30)
    assert ask(server, asking()).ok


def test_the_tokens_of_a_prompt_are_told_with_the_first_piece_and_counted(server):
    asked = {"text_input": PROMPT, "max_tokens": 4, "ignore_eos": True}
    before = metric(server, "llm_input_tokens_total")
    told = json.loads(post(server, asked)[1])["input_tokens"]
    assert metric(server, "llm_input_tokens_total") == before + told
    body = json.dumps({**asked, "stream": True}).encode()
    with urllib.request.urlopen(f"{server.http_url}/v2/models/llm/generate_stream", body, timeout=10) as answer:
        chunks = [json.loads(line[5:]) for line in answer if line.startswith(b"data:")]
    assert [chunk.get("input_tokens", 0) for chunk in chunks] == [told] + [0] * (len(chunks) - 1)
    assert told == json.loads(post(server, {**asked, "text_input": PROMPT + " "})[1])["input_tokens"] - 1
    before = metric(server, "llm_input_tokens_total")
    post(server, {**asked, "max_tokens": 0})
    assert metric(server, "llm_input_tokens_total") == before  # what is refused was not taken in


def test_the_kv_cache_usage_is_a_share_that_follows_the_length_of_the_context(server):
    ask(server, asking("moon", 4, ignore_eos=True))
    short = settled(server, "llm_kv_cache_usage")
    ask(server, asking(maximum_tokens=100, ignore_eos=True, allow_empty=True))
    assert 0 < short < settled(server, "llm_kv_cache_usage") <= CONTEXT / 16 / 64  # 64 blocks of at least 16 tokens
    ask(server, asking("moon", 4, ignore_eos=True))
    assert settled(server, "llm_kv_cache_usage") == short


def test_metrics_count_what_was_generated(server):
    tokens, completed = metric(server, "llm_tokens_total"), metric(server, 'llm_requests_total{outcome="completed"')
    ask(server, asking(maximum_tokens=20, ignore_eos=True), asking(maximum_tokens=10, ignore_eos=True))
    assert metric(server, "llm_tokens_total") == tokens + 30
    assert metric(server, 'llm_requests_total{outcome="completed"') == completed + 2
    assert metric(server, "llm_active_requests") == 0


def test_more_requests_than_the_queue_holds_are_refused_as_unavailable(drilled):
    answers = ask(drilled, *[asking(f"{PROMPT} {n}", allow_empty=True) for n in range(24)], verb="stream")
    refused = [answer for answer in answers if "queue is full" in answer.error]
    assert refused
    assert metric(drilled, 'llm_requests_total{outcome="rejected"') >= len(refused)
    assert eventually(lambda: metric(drilled, "llm_active_requests") == 0)


def test_a_drill_delays_every_first_token(drilled):
    answers = [ask(drilled, asking(allow_empty=True), verb="stream") for _ in range(3)]
    assert min(answer.first_token_seconds or answer.total_seconds for answer in answers) >= 0.4
    together = ask(drilled, *[asking(f"{PROMPT} {n}", allow_empty=True) for n in range(6)], verb="stream")
    assert max(answer.total_seconds for answer in together if answer.ok) < 1.2  # delayed side by side, not in turn


def test_a_client_that_left_during_the_delay_is_noticed_at_its_first_token(drilled):
    before = metric(drilled, 'llm_requests_total{outcome="cancelled"')

    async def leave():
        async with GenerationClient.of(drilled.endpoint, timeout_seconds=0.1) as client:
            await asyncio.gather(*(client.stream(asking(f"{PROMPT} {n}", 100, ignore_eos=True)) for n in range(4)))

    asyncio.run(leave())
    assert eventually(lambda: metric(drilled, "llm_active_requests") == 0)  # Triton tells only once it sends
    assert metric(drilled, 'llm_requests_total{outcome="cancelled"') > before


def test_a_request_that_outgrows_the_kv_cache_is_refused_and_others_take_turns(
    tiny_engine, model_python, triton_home, tmp_path
):
    small = TARGET.model_copy(update={"limits": TARGET.limits.model_copy(update={"kv_cache_blocks": 2})})
    ref = ArtifactRef(kind="engine", digest="e" * 64)
    write_repository(tiny_engine, (), {}, small, tmp_path / "repository", engine_ref=ref)
    state = tmp_path / "small"
    server = serve(tmp_path / "repository", state, 18496, model_python, triton_home)
    try:
        outgrowing = asking(maximum_tokens=100, ignore_eos=True, allow_empty=True)
        for verb in ("generate", "stream"):
            assert "the request does not fit into the KV cache" in ask(server, outgrowing, verb=verb).error
        assert metric(server, 'llm_requests_total{outcome="rejected"') == 2
        answers = ask(server, *[asking(f"{PROMPT} {n}", 30, ignore_eos=True, allow_empty=True) for n in range(4)])
        assert [answer.output_tokens for answer in answers] == [30] * 4
    finally:
        stop_server(state)


def test_stopping_a_server_with_live_requests_ends_them_and_leaves_nothing(
    repository, model_python, triton_home, tmp_path
):
    state = tmp_path / "stopping"
    slow = serve(
        repository, state, 18496, model_python, triton_home, {"LLM_PIPELINE_DRILL": '{"delay_milliseconds": 60000}'}
    )

    async def ask_and_stop():
        async with GenerationClient.of(slow.endpoint) as client:
            answers = asyncio.gather(*(client.stream(asking(f"{PROMPT} {n}")) for n in range(3)))
            await asyncio.sleep(0.3)
            await asyncio.to_thread(stop_server, state)
            return await answers

    started = time.monotonic()
    answers = asyncio.run(ask_and_stop())
    assert not any(answer.ok for answer in answers)
    assert time.monotonic() - started < 50
    assert not slow.process.session_alive


def test_a_drill_that_is_not_json_keeps_the_model_from_loading(repository, model_python, triton_home, tmp_path):
    from llm_pipeline.base.errors import PipelineError

    with pytest.raises(PipelineError, match=re.compile("json|Expecting", re.IGNORECASE)):
        serve(repository, tmp_path / "broken", 18496, model_python, triton_home, {"LLM_PIPELINE_DRILL": "slow"})
