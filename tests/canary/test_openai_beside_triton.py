"""OpenAI's API beside Triton's at the users' port: split, named, counted and answered by the other slot alike."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from canary_site import Site
from hostile_client import Answer, ask, generation
from http_slots import HttpSlots
from openai_server import OpenAiDouble
from test_envoy import both_up, shift, split

from llm_pipeline.canary.router import access_log_of

pytestmark = pytest.mark.slow

JSON = {"content-type": "application/json"}


@dataclass
class Beside:
    """A router, half of whose traffic is on trial, before two servers of each kind."""

    site: Site
    blue: OpenAiDouble
    green: OpenAiDouble

    def complete(self, *, stream: bool = False) -> Answer:
        body = {"model": "llm", "prompt": "one two", "max_tokens": 4, "temperature": 0, "stream": stream}
        body |= {"stream_options": {"include_usage": True}} if stream else {}
        return ask(self.site.place.port, "POST", "/v1/completions", json.dumps(body).encode(), JSON)


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    with OpenAiDouble() as blue, OpenAiDouble() as green:
        site = Site(tmp_path_factory.mktemp("beside"))
        site.control = HttpSlots(site.root, dict(site.slots))
        for slot, server in (("blue", blue), ("green", green)):
            port = int(server.url.rpartition(":")[2])
            site.slots[slot] = site.slots[slot].model_copy(update={"openai": port})
        try:
            site.up()
            both_up(site)
            for slot in site.slots:
                site.router.name_release(slot, f"release-{slot}")
            shift(site, split(50))
            yield Beside(site, blue, green)
        finally:
            site.down()


def test_both_apis_are_split_and_name_the_release_that_answered(beside: Beside) -> None:
    asked = [beside.complete() for _ in range(40)]
    generated = [ask(beside.site.place.port, "POST", "/v2/models/llm/generate", generation(), JSON) for _ in range(40)]
    for answers in (asked, generated):
        assert {answer.status for answer in answers} == {200}
        assert {answer.fields["x-llm-release"] for answer in answers} == {"release-blue", "release-green"}
    assert min(len(beside.blue.seen), len(beside.green.seen)) > 0
    assert ask(beside.site.place.port, "GET", "/v1/models").status == 200


def test_answers_of_both_kinds_are_counted(beside: Beside) -> None:
    beside.site.logged()
    end = access_log_of(beside.site.router).end()
    for stream in (False, True):
        assert {beside.complete(stream=stream).status for _ in range(10)} == {200}
    seen = beside.site.logged(end)
    assert Counter((one.route, one.streaming) for one in seen) == {
        ("/completions", False): 10,
        ("/completions", True): 10,
    }
    assert {(one.error, one.finish_reason, one.truncated) for one in seen} == {(False, "length", False)}
    assert all(one.first_byte_milliseconds is not None for one in seen)


def test_what_one_slot_fails_is_answered_by_the_other_and_is_its_fault(beside: Beside) -> None:
    beside.site.logged()
    end = access_log_of(beside.site.router).end()
    beside.green.fault = "overloaded"
    try:
        answers = [beside.complete() for _ in range(20)]
    finally:
        beside.green.fault = ""
    assert {(answer.status, answer.fields["x-llm-release"]) for answer in answers} == {(200, "release-blue")}
    assert {(one.arm, one.fault) for one in beside.site.logged(end)} == {("green", True), ("blue", False)}


def test_the_health_and_the_metrics_of_the_process_are_for_its_operator(beside: Beside) -> None:
    for path in ("/health", "/metrics", "/v1/embeddings"):
        answer = ask(beside.site.place.port, "GET", path)
        assert answer.status == 404
        assert b"not offered" in answer.body
