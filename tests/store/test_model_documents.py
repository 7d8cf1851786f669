"""Every model has its own documents, also where a version before gave two models the same one."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.release.claim import AirflowRun, Claimant, ReleaseClaim, claim_name, read_claims
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.store.artifact_store import Conflict
from llm_pipeline.store.model_documents import model_part, models_of_part
from llm_pipeline.store.pointer_writing import write_pointers
from llm_pipeline.store.pointers import Pointer, Pointers, pointers_name, read_pointers
from llm_pipeline.store.references import placed_pointers

ONE, OTHER = "a--b/c", "a/b--c"
SHARED_POINTERS, SHARED_CLAIM = "pointers/a--b--c/cpu.json", "claims/a--b--c.json"
PARTS = st.from_regex(r"\A[ab][ab.-]{0,5}\Z")


def pointer(release_id: str) -> Pointer:
    ref = ArtifactRef(kind="model_repository", digest="0" * 64)
    return Pointer(release_id=release_id, repository=ref, slot="blue", recipe="fp8", promoted_at=datetime.now(UTC))


def release(store: ArtifactStore, release_id: str, model_id: str) -> Pointer:
    """A release with as much of a record as says what it is of."""
    store.write_document(f"releases/{release_id}/release.json", {"model": {"id": model_id}}, None)
    return pointer(release_id)


def write_shared(store: ArtifactStore, production: Pointer, previous: Pointer | None = None) -> None:
    """As a version before wrote it."""
    value = Pointers(production=production, previous=previous).model_dump(mode="json")
    store.write_document(SHARED_POINTERS, value, None)


def production(store: ArtifactStore, model_id: str) -> str:
    found = read_pointers(store, model_id, "cpu")[0].production
    return found.release_id if found else ""


class TestNames:
    @given(models=st.lists(st.tuples(PARTS, PARTS), min_size=2, max_size=2, unique=True))
    def test_two_models_never_have_one_name_and_each_name_leads_back_to_its_model(self, models):
        ids = ["/".join(parts) for parts in models]
        parts = [model_part(one) for one in ids]
        assert parts[0] != parts[1]
        for model_id, part in zip(ids, parts, strict=True):
            assert models_of_part(part) == (model_id,)

    @pytest.mark.parametrize("model_id", ["Qwen/Qwen3-8B", "org-/name", "o.r_g/na.me--"])
    def test_a_name_that_was_a_model_s_own_stays(self, model_id):
        assert (model_part(model_id), models_of_part(model_part(model_id))) == (
            model_id.replace("/", "--"),
            (model_id,),
        )

    def test_the_longest_ids_fit_into_a_file_name(self):
        part = model_part(f"{'a--b' * 24}/{'c--d' * 24}")
        assert len(part) < 255 - len(".json")

    def test_a_name_of_no_model_is_refused(self):
        with pytest.raises(IntegrityError, match="stands for no model"):
            models_of_part("readme")


class TestPointers:
    def test_models_that_would_be_written_alike_have_their_own(self, store):
        for model_id in (ONE, OTHER):
            write_pointers(store, model_id, "cpu", Pointers(production=pointer(f"of {model_id}")), None)
        assert (production(store, ONE), production(store, OTHER)) == (f"of {ONE}", f"of {OTHER}")
        found = {placed.model_id: placed.pointers.production.release_id for placed in placed_pointers(store)}
        assert found == {ONE: f"of {ONE}", OTHER: f"of {OTHER}"}

    def test_a_shared_document_of_before_is_read_by_the_models_whose_releases_it_names(self, store):
        write_shared(store, release(store, "r1", ONE), release(store, "r2", OTHER))
        assert read_pointers(store, ONE, "cpu")[0].previous is None
        assert (production(store, ONE), production(store, OTHER)) == ("r1", "")
        other = read_pointers(store, OTHER, "cpu")[0].previous
        assert other is not None
        assert {str(one) for placed in placed_pointers(store) for one in placed.references()} == {
            f"production:{ONE}/cpu",
            f"previous:{OTHER}/cpu",
        }

    def test_a_release_without_a_record_counts_for_the_model_it_counted_for_before(self, store):
        write_shared(store, pointer("unknown"))
        assert (production(store, ONE), production(store, OTHER)) == ("", "unknown")

    def test_the_first_write_moves_it_and_a_version_before_understands_the_old_one_no_more(self, store):
        write_shared(store, release(store, "r1", ONE))
        now, revision = read_pointers(store, ONE, "cpu")
        write_pointers(
            store, ONE, "cpu", Pointers(production=release(store, "r3", ONE), previous=now.production), revision
        )
        assert production(store, ONE) == "r3"
        old = store.read_document(SHARED_POINTERS)
        assert old is not None
        with pytest.raises(ValueError, match="closed"):
            Pointers.model_validate(old.value)
        assert [placed.model_id for placed in placed_pointers(store)] == [ONE]

    def test_of_two_writers_one_gets_a_conflict(self, store):
        write_shared(store, release(store, "r1", ONE))
        revisions = [read_pointers(store, ONE, "cpu")[1] for _ in range(2)]
        write_pointers(store, ONE, "cpu", Pointers(production=pointer("r3")), revisions[0])
        with pytest.raises(Conflict):
            write_pointers(store, ONE, "cpu", Pointers(production=pointer("r4")), revisions[1])
        assert production(store, ONE) == "r3"

    def test_a_write_of_a_version_before_since_it_was_read_is_not_lost(self, store):
        write_shared(store, release(store, "r1", ONE))
        _, revision = read_pointers(store, ONE, "cpu")
        old = store.read_document(SHARED_POINTERS)
        newer = Pointers(production=release(store, "r2", ONE)).model_dump(mode="json")
        store.write_document(SHARED_POINTERS, newer, old.revision)
        with pytest.raises(Conflict):
            write_pointers(store, ONE, "cpu", Pointers(production=pointer("r3")), revision)
        assert production(store, ONE) == "r2"

    def test_between_any_two_steps_of_the_move_there_is_a_production_and_one_writer_wins(self, store):
        """Another writer and a reader act before each of the mover's writes to the store."""
        for turn in range(3):
            root = store.root / f"turn{turn}"
            real = open_store(f"file://{root}")
            write_shared(real, release(real, "r1", ONE))
            seen: list[str] = []
            rival: list[str] = []

            def before(number: int, real=real, turn=turn, seen=seen, rival=rival) -> None:
                seen.append(production(real, ONE))
                if number == turn:
                    _, revision = read_pointers(real, ONE, "cpu")
                    write_pointers(real, ONE, "cpu", Pointers(production=pointer("rival")), revision)
                    rival.append("won")

            mover = Stepped(real, before)
            _, revision = read_pointers(real, ONE, "cpu")
            try:
                write_pointers(mover, ONE, "cpu", Pointers(production=pointer("mover")), revision)
                moved = True
            except Conflict:
                moved = False
            assert all(seen)
            assert moved != bool(rival)
            assert production(real, ONE) == ("mover" if moved else "rival")

    def test_a_move_that_was_killed_halfway_is_gone_on_with(self, store):
        write_shared(store, release(store, "r1", ONE))
        old = store.read_document(SHARED_POINTERS)
        store.write_document(SHARED_POINTERS, {**old.value, "closed": True}, old.revision)
        now, revision = read_pointers(store, ONE, "cpu")
        assert now.production.release_id == "r1"
        write_pointers(store, ONE, "cpu", Pointers(production=pointer("r2")), revision)
        assert production(store, ONE) == "r2"


class Stepped:
    """A store in which something happens before each write."""

    def __init__(self, store: LocalStore, before: Any) -> None:
        self._store = store
        self._before = before
        self._writes = 0

    def read_document(self, name: str) -> Any:
        return self._store.read_document(name)

    def write_document(self, *arguments: Any) -> str:
        self._before(self._writes)
        self._writes += 1
        return self._store.write_document(*arguments)


class TestClaims:
    @staticmethod
    def claimant(run: str, release_id: str = "") -> Claimant:
        now = datetime.now(UTC)
        return Claimant(
            party=AirflowRun(airflow="a", dag_id="release__tiny", run_id=run),
            release="tiny",
            release_id=release_id,
            since=now,
            renewed_at=now,
            stale_after_hours=1.0,
        )

    def test_models_that_would_be_written_alike_do_not_wait_for_each_other(self, store):
        for model_id in (ONE, OTHER):
            assert ReleaseClaim(store, model_id, self.claimant(f"of {model_id}")).ask() is None
        holders = {model: state.holder.party.run_id for model, state in read_claims(store).items()}
        assert holders == {ONE: f"of {ONE}", OTHER: f"of {OTHER}"}

    def test_names_are_shown_as_they_are_stored(self):
        assert claim_name("organisation/model") == "claims/organisation--model.json"
        assert pointers_name("organisation/model", "cpu") == "pointers/organisation--model/cpu.json"
