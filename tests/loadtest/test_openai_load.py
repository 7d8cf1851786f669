"""The load client against a server of OpenAI's completions, request by request."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.loadtest.measure import LoadClient
from llm_pipeline.loadtest.records import Fault
from llm_pipeline.loadtest.traffic import LoadRequest, Traffic

sys.path.insert(0, str(Path(__file__).parents[1]))

from openai_server import KEY, OpenAiDouble

FAULTS = {
    "": Fault.NONE,
    "usage_at_the_end": Fault.NONE,
    "truncated": Fault.CUT,
    "cut": Fault.CUT,
    "no_reason": Fault.CUT,
    "no_usage": Fault.CUT,
    "no_end": Fault.CUT,
    "error": Fault.ERROR_IN_ANSWER,
    "other_model": Fault.ERROR_IN_ANSWER,
    "two_choices": Fault.MALFORMED,
    "absurd_usage": Fault.MALFORMED,
    "negative_usage": Fault.MALFORMED,
    "filtered": Fault.ERROR_IN_ANSWER,
    "aborted": Fault.CANCELLED,
    "short": Fault.SHORT,
    "long": Fault.LONG,
    "empty": Fault.EMPTY,
    "redirect": Fault.REFUSED,
    "overloaded": Fault.SHED,
    "chat": Fault.MALFORMED,
    "html": Fault.MALFORMED,
}
"""What becomes of an answer, by the server's fault."""


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAiDouble]:
    with OpenAiDouble(key=KEY) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: OpenAiDouble) -> Iterator[LoadClient]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_KEY", KEY)
        with LoadClient(endpoint_of(server), processes=1, timeout_seconds=5) as found:
            yield found


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)


def window(requests: list[LoadRequest]) -> Traffic:
    return Traffic.open_loop(requests, np.arange(len(requests)) * 0.004, len(requests) * 0.004)


def endpoint_of(server: OpenAiDouble) -> Endpoint:
    return Endpoint(url=server.url, metrics_url=server.metrics_url, openai_model="llm", api_key_variable="TEST_KEY")


def test_every_answer_is_judged_by_its_fault_and_tokens_are_the_servers(server, client):
    measured = client.send(window([LoadRequest(f"fault={fault} a", 4) for fault in FAULTS]))
    assert server.seen[0]["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert server.seen[0]["ignore_eos"] is True
    records = measured.records
    assert dict(zip(FAULTS, map(Fault, records["fault"]), strict=True)) == FAULTS
    sound = records.answered
    assert set(records["output_tokens"][sound]) == {4}
    assert set(records["input_tokens"][sound]) == {2}


def test_the_servers_own_figures_are_vllms_metrics(client):
    requests = [LoadRequest(f"a {number}", 6) for number in range(40)]
    use = client.send(window(requests)).server
    assert (use.output_tokens, use.input_tokens) == (40 * 6, 40 * 2)
    assert use.queue_milliseconds == pytest.approx(2.0)
    assert use.active_requests is not None
    assert use.kv_cache_fraction is not None


def test_a_user_leaves_after_so_many_tokens(client):
    leaving = [LoadRequest(f"fault={fault} a", 50, cancel_after_tokens=5) for fault in ("", "usage_at_the_end")]
    records = client.send(window(leaving)).records
    assert [Fault(fault) for fault in records["fault"]] == [Fault.LEFT, Fault.LEFT]
    assert max(records["output_tokens"]) < 50


def test_a_key_that_the_server_repeats_reaches_no_record(server, monkeypatch):
    monkeypatch.setenv("TEST_KEY", wrong := "n0t-the-right-one")
    with LoadClient(endpoint_of(server), processes=1) as client:
        details = client.send(window([LoadRequest("a", 2)])).records.details
    assert details == {Fault.REFUSED: "HTTP 401: Incorrect API key provided: ***"}
    assert wrong not in str(details)
