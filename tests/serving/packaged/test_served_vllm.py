"""The model of vLLM on a real tritonserver, with a double of vLLM's engine behind it.

The double counts on from a prompt's last token, one token each millisecond, and a certain last token kills it.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path

import httpx
import psutil
import pytest
from served import ask, leave, metric, post, stop
from waiting import until

pytest.importorskip("tritonclient")

from llm_pipeline.serving.client import GenerationClient, GenerationRequest
from llm_pipeline.serving.server_log import engine_death

pytestmark = pytest.mark.slow

DOUBLE = Path(__file__).parents[2] / "doubles/vllm_package"
PROMPT = "count on from #"
DEADLY, SENSELESS, UNWRITABLE = "\x0b", "\x0c", "\x0e"


@pytest.fixture(scope="module")
def serve(gpu_engine, package, start, bytes_checkpoint):
    properties = {"arguments": '{"kv_cache_dtype": "auto", "speculative_config": {"method": "ngram"}}'}
    repository, links = package(*gpu_engine("vllm", properties)), {"llm/1/checkpoint": bytes_checkpoint}
    environment = {"PYTHONPATH": str(DOUBLE)}
    return lambda: start(repository, DOUBLE, links=links, environment=environment, wait_seconds=120)


@pytest.fixture(scope="module")
def server(serve):
    return serve()


def asking(prompt=PROMPT, maximum_tokens=24, **options):
    return GenerationRequest(prompt=prompt, maximum_tokens=maximum_tokens, allow_empty=True, **options)


def engines(server):
    """The engine's processes, of all that run below the server's view of its repository."""
    slot = str(server.process.log.parent)
    lines = [(one, " ".join(one.info["cmdline"] or ())) for one in psutil.process_iter(["cmdline"])]
    return [one for one, line in lines if slot in line and "vllm_process.py" in line]


def test_a_streamed_answer_is_the_whole_answer_in_pieces_in_any_company(server):
    requests = [asking(f"{PROMPT}{letter}", ignore_eos=True) for letter in "#$%&'"]
    whole, pieces = ask(server, *requests), ask(server, *requests, verb="stream")
    assert [answer.error for answer in [*whole, *pieces]] == [""] * 10
    assert [answer.text for answer in whole] == [answer.text for answer in pieces]
    assert {answer.output_tokens for answer in [*whole, *pieces]} == {24}
    assert whole[0].text.startswith("\x04\x05\x06\x07")
    assert max(len(answer.chunk_seconds) for answer in pieces) > 1  # how many: a busy machine sends several in one


def test_an_answer_ends_with_the_end_token_or_before_a_stop_word(server):
    assert ask(server, asking(maximum_tokens=60)).finish_reason == "stop"
    answer = ask(server, asking(maximum_tokens=60, stop=("\x08\x09",)))
    assert (answer.finish_reason, answer.text) == ("stop", "\x04\x05\x06\x07")


def test_what_vllm_is_asked_for_is_what_the_request_says(server):
    asked = {"text_input": PROMPT, "max_tokens": 3, "ignore_eos": True}
    status, answer = post(server, {**asked, "logprobs": 2, "echo": True})
    assert status == 200, answer
    told = json.loads(answer)
    assert (told["text_output"], told["output_tokens"]) == (PROMPT + "\x04\x05\x06", 3)
    entries = json.loads(told["logprobs"])
    assert "".join(entry["token"] for entry in entries) == told["text_output"]
    assert [entries[0]["logprob"], entries[1]["logprob"]] == [None, -0.5]
    assert entries[-1]["top"] == [["\x06", -0.5], ["\x07", -1.0]]
    status, answer = post(server, {**asked, "logprobs": 0, "echo": True, "max_tokens": 0})
    told = json.loads(answer)
    assert (told["text_output"], told["output_tokens"], told["finish_reason"]) == (PROMPT, 0, "length")
    sampled = {"temperature": 0.5, "top_p": 0.9, "top_k": 9, "min_p": 0.1, "seed": -1, "presence_penalty": 1}
    for change in (sampled, {"frequency_penalty": 1}, {"repetition_penalty": 1.1}, {"json_schema": "{}"}):
        status, answer = post(server, asked | change)
        assert status == 200, answer


@pytest.mark.parametrize("fields", [{}, {"json_schema": "{}"}], ids=["as vLLM 0.20 does", "as newer versions do"])
def test_what_vllm_refuses_is_the_callers_mistake(server, fields):
    before = metric(server, 'llm_requests_total{outcome="invalid"')
    status, answer = post(server, {"text_input": PROMPT + SENSELESS, "max_tokens": 3, **fields})
    assert (status, json.loads(answer)) == (400, {"error": "invalid: senseless"})
    assert metric(server, 'llm_requests_total{outcome="invalid"') == before + 1


def test_a_schema_that_the_tokenizer_cannot_write_is_the_callers_mistake_and_named(server):
    url, asked = f"http://127.0.0.1:{server.ports.openai}/v1/completions", {"prompt": PROMPT + UNWRITABLE}
    refused = httpx.post(url, json={**asked, "response_format": {"type": "json_object"}})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "response_format")
    assert error["message"].startswith("response_format: no token of this model's tokenizer")
    assert httpx.post(url, json=asked).status_code == 500, "without a schema it is a failure"


def test_the_engines_own_figures_are_shown(server):
    ask(server, *[asking(ignore_eos=True) for _ in range(3)])
    until(lambda: metric(server, "llm_kv_cache_usage") == 0)
    assert metric(server, "llm_preemptions_total") > 0  # the double tells of one a request
    drafts, accepted = (metric(server, f"llm_{name}_total") for name in ("drafts", "accepted"))
    assert 0 < 2 * drafts == accepted  # and of two tokens that were guessed rightly a step
    until(lambda: metric(server, "llm_active_requests") == 0)


def test_a_client_that_leaves_frees_its_place(server):
    before = metric(server, 'llm_requests_total{outcome="cancelled"')

    leave(server, asking(maximum_tokens=400, ignore_eos=True))
    until(lambda: metric(server, "llm_active_requests") == 0)
    assert metric(server, 'llm_requests_total{outcome="cancelled"') == before + 1


def test_an_engine_that_dies_fails_its_requests_and_is_started_again(server):
    (answer,) = [ask(server, asking(f"{PROMPT}{DEADLY}"))]
    assert "the engine failed" in answer.error
    until(lambda: ask(server, asking(ignore_eos=True)).ok)


def test_a_worker_that_dies_is_named_by_the_log_with_the_time(server):
    children = psutil.Process(server.pid).children(recursive=True)
    (worker,) = (one for one in children if "VLLM::Worker_TP1" in one.cmdline())
    worker.kill()
    until(lambda: f"VLLM::Worker_TP1, pid {worker.pid}," in server.process.log.read_text())
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:]{8}Z vLLM's engine is dead: ", engine_death(server.process.log))
    until(lambda: ask(server, asking(ignore_eos=True)).ok)


def test_a_server_ends_with_the_process_of_its_model_and_leaves_nobody_waiting(serve):
    server = serve()
    assert ask(server, asking()).ok
    (stub,) = [one for one in psutil.Process(server.pid).children() if "stub" in one.name()]

    async def killed_in_the_middle():
        async with GenerationClient.of(server.endpoint) as client:
            waiting = asyncio.create_task(client.generate(asking(maximum_tokens=400, ignore_eos=True)))
            await asyncio.sleep(0.1)
            stub.kill()
            return await waiting

    started = time.monotonic()
    answer = asyncio.run(killed_in_the_middle())
    assert answer.error, "it cannot have been complete"
    assert "no complete answer within" not in answer.error, time.monotonic() - started
    until(lambda: not server.alive)
    stop(server)
    until(lambda: engines(server) == [])


def test_a_stopped_server_leaves_no_engine_and_had_time_to_say_so(serve):
    server = serve()
    assert len(engines(server)) == 1
    started = time.monotonic()
    stop(server)
    until(lambda: engines(server) == [])
    assert "Non-graceful" not in server.process.log.read_text(), time.monotonic() - started
