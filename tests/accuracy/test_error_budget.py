"""One error for all gates of a candidate."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_pipeline.accuracy.error_budget import GateLedger, ladder_error, policy_at, share_of_error
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.config.store import store_settings
from llm_pipeline.store import open_store
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return open_store(store_settings(uri=(tmp_path / "store").as_uri()))


def ledger(store: ArtifactStore, candidate: str = "abc") -> GateLedger:
    return GateLedger(store, "accuracy", candidate)


def test_a_gate_that_follows_one_without_a_go_is_the_next_one(store: ArtifactStore) -> None:
    for number, verdict in enumerate((Verdict.INCONCLUSIVE, Verdict.NO_GO, Verdict.ANOMALOUS), start=1):
        assert ledger(store).enter(f"key{number}") == number
        ledger(store).close(f"key{number}", verdict)
    assert ledger(store).enter("key4") == 4


def test_the_same_gate_again_is_the_same_one_whatever_it_said(store: ArtifactStore) -> None:
    assert [ledger(store).enter("first") for _ in range(3)] == [1, 1, 1]
    ledger(store).close("first", Verdict.INCONCLUSIVE)
    assert ledger(store).enter("second") == 2
    assert ledger(store).enter("first") == 1
    ledger(store).close("second", Verdict.INCONCLUSIVE)
    ledger(store).close("second", Verdict.INCONCLUSIVE)
    assert ledger(store).enter("third") == 3


def test_a_gate_that_never_ended_or_passed_has_used_nothing_up(store: ArtifactStore) -> None:
    ledger(store).enter("killed")
    ledger(store).enter("passed")
    ledger(store).close("passed", Verdict.GO)
    assert ledger(store).enter("other") == 1


def test_other_candidates_and_lanes_have_budgets_of_their_own(store: ArtifactStore) -> None:
    ledger(store).enter("key")
    ledger(store).close("key", Verdict.INCONCLUSIVE)
    assert ledger(store, "def").enter("other") == 1
    assert GateLedger(store, "served_accuracy", "abc").enter("other") == 1


def test_a_gate_entered_meanwhile_is_not_lost(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger(store).enter("first")
    write, raced = store.write_document, []

    def write_after_another(name: str, value: object, revision: str | None = None) -> object:
        if not raced:
            raced.append(True)
            monkeypatch.setattr(store, "write_document", write)
            ledger(store).close("first", Verdict.INCONCLUSIVE)
            raise Conflict(name)
        return write(name, value, revision)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "write_document", write_after_another)
    assert ledger(store).enter("second") == 2


def test_a_damaged_ledger_is_no_empty_one(store: ArtifactStore) -> None:
    store.write_document(ledger(store).document, {"gates": "none"}, None)
    with pytest.raises(IntegrityError, match="cannot be understood"):
        ledger(store).enter("key")


@pytest.mark.parametrize("gates", [1, 3, 50])
def test_the_gates_of_a_candidate_never_spend_more_than_the_error(gates: int) -> None:
    shares = [share_of_error(AccuracyPolicy(), number) for number in range(1, gates + 1)]
    assert sum(shares) <= 1.0 + 1e-12
    assert shares[0] == pytest.approx(0.8)


def test_a_policy_may_divide_the_error_among_the_ladder_or_not_at_all() -> None:
    alone, shared = AccuracyPolicy(error_budget="gate"), AccuracyPolicy(error_budget="ladder")
    assert [share_of_error(alone, number) for number in (1, 2, 9)] == [1.0, 1.0, 1.0]
    assert ladder_error(alone, 6) == pytest.approx(1 - 0.95**6)
    assert ladder_error(shared, 6) < 0.05
    assert policy_at(shared, share_of_error(shared, 1, 6)).confidence == pytest.approx(1 - 0.05 * 0.8 / 6)
