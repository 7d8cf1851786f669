"""Somebody else's server of OpenAI's completions, as a staging server: taken for one candidate, and given back."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai_endpoint import at
from openai_server import CONTEXT, OpenAiDouble

from llm_pipeline.adapters.openai.adapter import OpenAiServer
from llm_pipeline.base.errors import ConfigError, IntegrityError, Transient, Unsupported
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.control import Candidate, ServerControl, endpoint_of, open_control
from llm_pipeline.serving.endpoint_access import active_requests, await_no_requests
from llm_pipeline.serving.triton_server import SlotBusy


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAiDouble]:
    with OpenAiDouble() as found:
        yield found


def control_of(endpoint: Endpoint, slot, context: int = CONTEXT) -> ServerControl:
    limits = slot.target.limits.model_copy(update={"maximum_tokens_per_request": context})
    target = slot.target.model_copy(update={"limits": limits})
    changed = type(slot)(state=slot.state, release_name=slot.release_name, target=target)
    return open_control(OpenAiServer(kind="openai", endpoint=endpoint), changed)


def candidate(digest: str) -> Candidate:
    return Candidate(Path("/nowhere"), digest * 64)


def test_the_server_is_taken_for_one_candidate_and_given_back(server, staging_slot):
    control = control_of(at(server), staging_slot)
    assert control.find() is None
    staged = control.start(candidate("c"), wait_seconds=5)
    assert staged.endpoint == endpoint_of(
        OpenAiServer(kind="openai", endpoint=at(server)), release_name="demo", target_name="cpu"
    )
    assert staged.digest == "c" * 64
    assert control.start(candidate("c"), wait_seconds=5) == staged
    with pytest.raises(SlotBusy, match="cccccccccccc"):
        control.start(candidate("d"), wait_seconds=5)
    another = control_of(at(server), staging_slot)  # as a process that never saw the start
    assert another.find() == staged
    another.stop(drain_seconds=1)
    another.stop()
    assert control.find() is None
    assert control.start(candidate("d"), wait_seconds=5).digest == "d" * 64
    control.stop()


def test_a_server_that_is_not_there_yet_is_waited_for_and_a_wrong_one_is_not(server, staging_slot):
    with pytest.raises(Transient, match="no server answers"):
        control_of(at(server, url="http://127.0.0.1:9"), staging_slot).start(candidate("c"), wait_seconds=0)
    with pytest.raises(IntegrityError, match="the models llm, not another"):
        control_of(at(server, openai_model="another"), staging_slot).start(candidate("c"), wait_seconds=60)
    with pytest.raises(Unsupported, match="requests of 512 tokens, and the target"):
        control_of(at(server), staging_slot, context=513).start(candidate("c"), wait_seconds=60)
    assert control_of(at(server), staging_slot).find() is None, "none of them took the server"


def test_requests_in_flight_are_those_that_run_and_wait(server):
    assert active_requests(at(server)) == 0
    assert await_no_requests(at(server), 1)
    with OpenAiDouble(counts=False) as silent:
        assert active_requests(at(silent)) is None
        assert not await_no_requests(at(silent), 0)


def test_the_place_needs_a_model(server):
    with pytest.raises(ValueError, match="openai_model must name"):
        OpenAiServer(kind="openai", endpoint=at(server, openai_model=None))


def test_a_key_that_is_missing_is_said_before_anything_is_asked(server, staging_slot, monkeypatch):
    monkeypatch.delenv("TEST_KEY", raising=False)
    with pytest.raises(ConfigError, match="TEST_KEY must hold"):
        control_of(at(server, api_key_variable="TEST_KEY"), staging_slot).start(candidate("c"), wait_seconds=5)
