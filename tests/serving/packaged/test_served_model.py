"""The packaged engine on a real tritonserver."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from served import ask, cpu_target, metric, post, settled, stop

pytest.importorskip("tritonclient")

from llm_pipeline.serving.client import GenerationClient, GenerationRequest

pytestmark = pytest.mark.slow

CONTEXT = 128
PROMPT = "the cat sees a red moon"


@pytest.fixture(scope="module")
def repository(tiny_engine, package):
    return package(tiny_engine, cpu_target(4, 4, 64))


@pytest.fixture(scope="module")
def server(repository, start):
    return start(repository)


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


def test_a_stop_word_that_never_comes_changes_nothing(server):
    full = ask(server, asking(maximum_tokens=40, ignore_eos=True))
    stopped = ask(server, asking(maximum_tokens=40, ignore_eos=True, stop=(full.text[-1] + "~never",)), verb="stream")
    assert stopped.text == full.text
    assert stopped.finish_reason == "length"


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


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"text_input": ""}, "text_input is empty"),
        ({"max_tokens": 0}, "max_tokens 0 is not in 1..127"),
        ({"text_input": "red moon " * 200}, "exceed 128"),
        ({"max_tokens": CONTEXT - 1}, "exceed 128"),
        ({"temperature": 2.5}, "temperature"),
        ({"max_tokens": 2**32 + 5}, "max_tokens 4294967301 is not in 1..127"),
        ({"max_tokens": -2}, "max_tokens -2"),
        ({"top_p": 0}, "top_p 0 is not in 1e-06..1"),
        ({"min_p": 1e39}, "min_p inf"),
        ({"top_k": -1}, "top_k -1"),
        ({"frequency_penalty": 3}, "frequency_penalty 3"),
        ({"repetition_penalty": 0}, "repetition_penalty 0"),
        ({"logprobs": 21}, "logprobs 21 is not in 0..20"),
        ({"input_ids": [5]}, "text_input and input_ids"),
        ({"text_input": "", "input_ids": [5, 384]}, "input_ids: tokens are in 0..383"),
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


def test_the_tokens_of_a_prompt_are_told_with_the_first_piece_and_counted(server):
    asked = {"text_input": PROMPT, "max_tokens": 4, "ignore_eos": True}
    before = metric(server, "llm_input_tokens_total")
    told = json.loads(post(server, asked)[1])["input_tokens"]
    assert metric(server, "llm_input_tokens_total") == before + told
    streamed = post(server, {**asked, "stream": True}, verb="generate_stream")[1]
    chunks = [json.loads(line[5:]) for line in streamed.splitlines() if line.startswith("data:")]
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


def test_a_request_that_outgrows_the_kv_cache_is_refused_and_others_take_turns(tiny_engine, package, start):
    server = start(package(tiny_engine, cpu_target(4, 4, 2)))
    outgrowing = asking(maximum_tokens=100, ignore_eos=True, allow_empty=True)
    for verb in ("generate", "stream"):
        assert "the request does not fit into the KV cache" in ask(server, outgrowing, verb=verb).error
    assert metric(server, 'llm_requests_total{outcome="rejected"') == 2
    answers = ask(server, *[asking(f"{PROMPT} {n}", 30, ignore_eos=True, allow_empty=True) for n in range(4)])
    assert [answer.output_tokens for answer in answers] == [30] * 4


def test_a_drill_delays_every_first_token_side_by_side(repository, start):
    drilled = start(repository, environment={"LLM_PIPELINE_DRILL": json.dumps({"delay_milliseconds": 400})})
    together = ask(drilled, *[asking(f"{PROMPT} {n}", allow_empty=True) for n in range(6)], verb="stream")
    assert min(answer.first_token_seconds or answer.total_seconds for answer in together) >= 0.4
    assert max(answer.total_seconds for answer in together) < 1.2


def test_stopping_a_server_with_live_requests_ends_them_and_leaves_nothing(repository, start):
    slow = start(repository, environment={"LLM_PIPELINE_DRILL": '{"delay_milliseconds": 60000}'})

    async def ask_and_stop():
        async with GenerationClient.of(slow.endpoint) as client:
            answers = asyncio.gather(*(client.stream(asking(f"{PROMPT} {n}")) for n in range(3)))
            await asyncio.sleep(0.3)
            await asyncio.to_thread(stop, slow)
            return await answers

    started = time.monotonic()
    answers = asyncio.run(ask_and_stop())
    assert not any(answer.ok for answer in answers)
    assert time.monotonic() - started < 50
    assert not slow.process.session_alive
