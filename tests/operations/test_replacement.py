"""A model takes places over on a person's word: asked twice, it is done once, and nothing that serves is touched."""

from __future__ import annotations

from pathlib import Path

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.operations.replacement import replace
from llm_pipeline.store.places import claim_place, holder_of

OURS, THEIRS = "demo/ours", "demo/theirs"


def test_every_place_is_handed_over_once_and_taken_back_by_its_holder(tmp_path: Path) -> None:
    store = LocalStore(f"file://{tmp_path}/store")
    for place in ("cpu", "gpu"):
        claim_place(store, place, OURS, by="r1")
    for _ in range(2):
        replace(store, ["cpu", "gpu", "free"], THEIRS, by="alice")
        held = [holder_of(store, place) for place in ("cpu", "gpu")]
        assert [(one.model_id, one.next_model, one.next_by) for one in held if one] == [(OURS, THEIRS, "alice")] * 2
        assert holder_of(store, "free") is None
    replace(store, ["cpu"], OURS, by="bob")
    kept = holder_of(store, "cpu")
    assert kept is not None
    assert (kept.model_id, kept.next_model) == (OURS, "")
