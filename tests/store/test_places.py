"""Who holds a place: written down at the first release, changed by a hand-over; and edits of its one document."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from place_here import serve

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.store.artifact_store import Conflict
from llm_pipeline.store.place_state import (
    PlaceState,
    PlaceTaken,
    Pointer,
    claim_place,
    edit_place,
    hand_over,
    read_place,
    refuse_stranger,
    require_place,
    serving_at,
)

A, B = "demo/a", "demo/b"


def pointer(release: str) -> Pointer:
    repository = ArtifactRef(kind="model_repository", digest="a" * 64)
    since = datetime(2026, 1, 1, tzinfo=UTC)
    return Pointer(release_id=release, repository=repository, slot="blue", recipe="none", promoted_at=since)


def test_a_place_belongs_to_whoever_claims_it_first(store: LocalStore) -> None:
    assert str(read_place(store, "cpu")) == "free"
    assert claim_place(store, "cpu", A, by="a1").model_id == A
    assert claim_place(store, "cpu", A, by="a2").by == "a1"
    for act in (require_place, refuse_stranger):
        with pytest.raises(PlaceTaken, match=f"place cpu belongs to {A}: a release of {B}"):
            act(store, "cpu", B)
    with pytest.raises(PlaceTaken):
        claim_place(store, "cpu", B, by="b1")
    assert claim_place(store, "cpu-2", B, by="b1").model_id == B


def test_a_hand_over_lets_the_other_model_in_while_the_holder_serves(store: LocalStore) -> None:
    serve(store, A, "cpu", pointer("a1"))
    hand_over(store, "cpu", B, by="alice")
    require_place(store, "cpu", A)
    require_place(store, "cpu", B)
    serving = serving_at(store, "cpu")
    assert serving is not None
    assert (serving.model_id, serving.pointer.release_id) == (A, "a1")


def test_the_holder_takes_a_hand_over_back(store: LocalStore) -> None:
    serve(store, A, "cpu", pointer("a1"))
    hand_over(store, "cpu", B, by="alice")
    hand_over(store, "cpu", A, by="bob")
    with pytest.raises(PlaceTaken):
        require_place(store, "cpu", B)


def test_an_edit_keeps_what_others_wrote_meanwhile(store: LocalStore) -> None:
    asked = []

    def edit(state: PlaceState) -> PlaceState:
        asked.append(state.by)
        if len(asked) == 1:
            claim_place(store, "cpu", A, by="a1")
        return state.model_copy(update={"on_trial": "a1"})

    found = edit_place(store, "cpu", edit)
    assert (found.model_id, found.on_trial, asked) == (A, "a1", ["", "a1"])
    assert read_place(store, "cpu") == found


def test_an_edit_that_never_gets_a_turn_is_a_conflict_and_one_that_changes_nothing_writes_nothing(store, monkeypatch):
    assert edit_place(store, "cpu", lambda state: state) == PlaceState()
    assert store.read_document("places/cpu.json") is None

    def refuse(*_: object) -> str:
        raise Conflict("somebody else")

    monkeypatch.setattr(store, "write_document", refuse)
    with pytest.raises(Conflict, match="changes faster"):
        claim_place(store, "cpu", A, by="a1")
