"""Who holds a place: written down at the first release, changed by a hand-over, read from the pointers before that."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.store.places import (
    PlaceContested,
    PlaceTaken,
    claim_place,
    hand_over,
    holder_of,
    place_state,
    refuse_stranger,
    require_place,
    serving_at,
    settle_place,
)
from llm_pipeline.store.pointer_writing import write_pointers
from llm_pipeline.store.pointers import Pointer, Pointers, read_pointers
from llm_pipeline.store.references import placed_pointers

A, B = "demo/a", "demo/b"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(f"file://{tmp_path}/store")


def pointer(release: str) -> Pointer:
    repository = ArtifactRef(kind="model_repository", digest="a" * 64)
    since = datetime(2026, 1, 1, tzinfo=UTC)
    return Pointer(release_id=release, repository=repository, slot="blue", recipe="none", promoted_at=since)


def promote(store: LocalStore, model_id: str, release: str, place: str = "cpu") -> None:
    known, revision = read_pointers(store, model_id, place)
    write_pointers(store, model_id, place, Pointers(production=pointer(release), previous=known.production), revision)


def test_a_place_belongs_to_whoever_claims_it_first(store: LocalStore) -> None:
    assert holder_of(store, "cpu") is None
    assert claim_place(store, "cpu", A, by="a1").model_id == A
    assert claim_place(store, "cpu", A, by="a2").by == "a1"
    for act in (require_place, refuse_stranger):
        with pytest.raises(PlaceTaken, match=f"place cpu belongs to {A}: a release of {B}"):
            act(store, "cpu", B)
    with pytest.raises(PlaceTaken):
        claim_place(store, "cpu", B, by="b1")
    assert claim_place(store, "cpu-2", B, by="b1").model_id == B


def test_in_a_store_of_a_version_before_the_model_in_production_holds_the_place(store: LocalStore) -> None:
    promote(store, A, "a1")
    with pytest.raises(PlaceTaken):
        require_place(store, "cpu", B)
    assert store.read_document("places/cpu.json") is None
    claim_place(store, "cpu", A, by="a2")
    assert store.read_document("places/cpu.json") is not None


def test_a_hand_over_is_concluded_by_the_promotion_and_leaves_one_model_in_production(store: LocalStore) -> None:
    promote(store, A, "a1")
    hand_over(store, "cpu", B, by="alice")
    require_place(store, "cpu", A)
    require_place(store, "cpu", B)
    serving = serving_at(store, "cpu")
    assert serving is not None
    assert (serving.model_id, serving.pointer.release_id) == (A, "a1")
    promote(store, B, "b1")
    for _ in range(2):
        settle_place(store, "cpu", B, by="b1")
    holder = holder_of(store, "cpu")
    assert holder is not None
    assert (holder.model_id, holder.next_model) == (B, "")
    assert read_pointers(store, A, "cpu")[0] == Pointers(production=None, previous=pointer("a1"))
    with pytest.raises(PlaceTaken):
        require_place(store, "cpu", A)


def test_the_holder_takes_a_hand_over_back(store: LocalStore) -> None:
    promote(store, A, "a1")
    hand_over(store, "cpu", B, by="alice")
    hand_over(store, "cpu", A, by="bob")
    with pytest.raises(PlaceTaken):
        require_place(store, "cpu", B)


def test_a_free_place_is_not_reserved_by_a_hand_over(store: LocalStore) -> None:
    assert hand_over(store, "cpu", B, by="alice") is None
    claim_place(store, "cpu", A, by="a1")


def test_two_models_that_both_say_they_serve_are_told_apart_by_a_hand_over_only(store: LocalStore) -> None:
    promote(store, A, "a1")
    promote(store, B, "b1")
    for model in (A, B):
        with pytest.raises(PlaceContested, match=f"{A}, {B}"):
            require_place(store, "cpu", model)
        refuse_stranger(store, "cpu", model)  # a way back does not wait for that
    found = place_state(store, "cpu", placed_pointers(store))
    assert found.problem == f"{A} and {B} say that they are in production there; nothing says which of them holds it"
    hand_over(store, "cpu", B, by="alice")
    assert place_state(store, "cpu", placed_pointers(store)).problem.endswith(f"{B} holds it")
    settle_place(store, "cpu", B, by="b1")
    found = place_state(store, "cpu", placed_pointers(store))
    assert found.problem == ""
    assert str(found).startswith(f"held by {B} since 20")
