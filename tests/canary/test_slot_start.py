"""How long a production slot waits for its server; no server is started here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_pipeline.base import detached
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.moving import retire
from llm_pipeline.canary.router import Patience
from llm_pipeline.canary.slots import ServedPlace, TritonSlots
from llm_pipeline.serving.endpoint_access import served_name
from llm_pipeline.serving.slot_fence import FencingToken

PRODUCTION = Path(__file__).parents[2] / "configs" / "policies" / "production.yaml"


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
