"""Slots of servers that somebody else starts: known by their golden answers; and one whose record cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai_server import KEY, OpenAiDouble
from openai_site import openai_slots, released

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.artifacts.golden import write_golden
from llm_pipeline.base import detached
from llm_pipeline.base.errors import ConfigError, Fenced, Transient
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.moving import retire
from llm_pipeline.canary.router import Patience
from llm_pipeline.canary.slots import OpenAiSlots, ServedPlace, TritonSlots
from llm_pipeline.serving.endpoint_access import served_name
from llm_pipeline.serving.slot_fence import FencingToken

TOKEN = FencingToken(1, 1)


class Place:
    """Two servers, of which green serves another release than blue."""

    def __init__(self, root: Path, blue: OpenAiDouble, green: OpenAiDouble) -> None:
        self.store, self.root = LocalStore(f"file://{root}/store"), root
        self.old, self.new = released(self.store, root, blue), released(self.store, root, green)
        self.servers = blue, green
        self.slots = self.opened()

    def opened(self) -> OpenAiSlots:
        servers = openai_slots(*(server.url for server in self.servers))
        return OpenAiSlots(
            store=self.store, servers=servers, target="h200", state_root=self.root / "state", wait_seconds=0.0
        )


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with OpenAiDouble() as blue, OpenAiDouble(fault="drift") as green:
        yield Place(tmp_path, blue, green)


def test_a_server_is_taken_for_the_release_whose_golden_answers_it_gives(place: Place) -> None:
    assert not place.slots.alive("green")
    place.slots.replace("green", place.new, TOKEN)
    again = place.opened()
    assert again.alive("green")
    assert again.answers("green")
    assert again.served("green") == place.new.digest
    assert again.differs("green", place.new) is None
    warm = again.warm_up("green", place.new)
    assert (warm.prompts, warm.answered, warm.matched) == (6, 6, 6)


def test_a_server_of_another_release_is_refused_and_not_taken(place: Place) -> None:
    with pytest.raises(ConfigError, match="0 of 6 golden answers, and 80% are needed") as raised:
        place.slots.replace("green", place.old, TOKEN)
    assert "serve the release's checkpoint there" in raised.value.hint
    assert not place.slots.alive("green")
    assert place.slots.differs("green", place.old) is not None


def test_a_release_without_golden_answers_cannot_be_known(place: Place) -> None:
    (place.root / "empty").mkdir()
    write_golden(place.root / "empty", [])
    nameless = place.store.publish("model_repository", place.root / "empty")
    with pytest.raises(ConfigError, match="no golden answers"):
        place.slots.replace("green", nameless, TOKEN)


def test_who_was_taken_over_takes_and_gives_back_nothing(place: Place) -> None:
    place.slots.replace("green", place.new, FencingToken(2, 2))
    for act in (place.slots.stop, place.slots.replace, place.slots.ensure):
        with pytest.raises(Fenced):
            act("green", place.new, TOKEN)
    assert place.slots.alive("green")


def test_another_model_under_the_same_name_is_noticed_later(place: Place) -> None:
    place.slots.replace("blue", place.old, TOKEN)
    place.servers[0].root = "/checkpoints/another"
    assert place.slots.differs("blue", place.old) == (
        "its model's root was /checkpoints/llm, and is /checkpoints/another now"
    )


def test_a_server_that_is_given_back_goes_on_and_can_be_taken_again(place: Place) -> None:
    place.slots.replace("green", place.new, TOKEN)
    assert not place.slots.stop("green", place.old, TOKEN)
    assert place.slots.alive("green")
    assert place.slots.stop("green", place.new, TOKEN)
    assert not place.slots.alive("green")
    assert not place.slots.ended("green")
    place.slots.ensure("green", place.new, TOKEN)
    assert place.slots.alive("green")


def test_a_slot_that_was_taken_for_another_release_is_not_stable(place: Place) -> None:
    place.slots.replace("green", place.new, TOKEN)
    with pytest.raises(ConfigError, match="was accepted for"):
        place.slots.ensure("green", place.old, TOKEN)


def test_a_server_that_has_ended_cannot_be_started_from_here(tmp_path: Path) -> None:
    with OpenAiDouble() as blue, OpenAiDouble(fault="drift") as green:
        place = Place(tmp_path, blue, green)
        place.slots.replace("green", place.new, TOKEN)
    assert not place.slots.alive("green")
    assert place.slots.ended("green")
    assert place.slots.differs("green", place.new) is not None
    with pytest.raises(Transient, match="cannot be started from here") as raised:
        place.slots.ensure("green", place.new, TOKEN)
    assert raised.value.hint == "start it with the release's checkpoint"


def test_a_key_opens_the_server_and_is_written_nowhere(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with OpenAiDouble(key=KEY) as closed:
        servers = openai_slots(place.servers[0].url, closed.url, api_key_variable="SLOT_KEY")
        slots = OpenAiSlots(
            store=place.store, servers=servers, target="keyed", state_root=place.root / "state", wait_seconds=0.0
        )
        monkeypatch.setenv("SLOT_KEY", "wrong-" + KEY)
        with pytest.raises(ConfigError, match="refuses access") as raised:
            slots.replace("green", place.old, TOKEN)
        monkeypatch.setenv("SLOT_KEY", KEY)
        slots.replace("green", place.old, TOKEN)
        assert slots.answers("green")
    written = "".join(file.read_text() for file in (place.root / "state").rglob("*") if file.is_file())
    assert KEY not in written + caplog.text + str(raised.value)


def test_a_slots_server_whose_record_cannot_be_read_is_drained_and_stopped_all_the_same(tmp_path):
    """A package of another version started it; a rollback must not end at it."""
    state, repository = tmp_path / "h100" / "green", ArtifactRef(kind="model_repository", digest="c" * 64)
    state.mkdir(parents=True)
    command = ["sh", "-c", "sleep 600", f"--id={served_name(repository.digest)}"]
    process = detached.start("server", command, state / "process.json", log=state / "server.log")
    (state / "server.json").write_text('{"repository": "/r"}')
    store: Any = None
    place_slots = TritonSlots(store=store, servers={}, target="h100", state_root=tmp_path)
    site = ServedPlace(store, "", "h100", None, place_slots, Patience(blind_drain=0.1))
    token = FencingToken(1, 1)
    try:
        assert place_slots.alive("green")
        assert retire(site, "green", repository, token=token, drain_seconds=0.1) == ""
        assert not process.session_alive
        assert not place_slots.alive("green")
    finally:
        detached.stop(process)
