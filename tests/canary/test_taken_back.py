"""Whoever drove a canary that somebody else took back says who it was, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.canary import judgements as findings
from llm_pipeline.canary.events import EventKind
from llm_pipeline.canary.judgements import taken_back_judgement
from llm_pipeline.canary.record import CanaryJournal, CanaryRecord, Phase

REPOSITORY = ArtifactRef(kind="model_repository", digest="a" * 64)


def said(root: Path, phase: Phase, by: str) -> Judgement | None:
    store = LocalStore(f"file://{root}/store")
    record = CanaryRecord(
        release_id="r2", target="cpu", repository=REPOSITORY, stable="blue", candidate="green", began_at=0.0,
        phase=phase, judgement=findings.taken_back("baking", 25.0),
    )  # fmt: skip
    CanaryJournal(store, "r2", "cpu").save(record.with_event(EventKind.ROLLING_BACK, "rolled back", by=by))
    return taken_back_judgement(store, "r2", "cpu", wait_seconds=0.0)


@pytest.mark.parametrize("phase", [Phase.ROLLING_BACK, Phase.ROLLED_BACK])
def test_a_person_who_took_it_back_is_named_with_the_time(tmp_path: Path, phase: Phase) -> None:
    judgement = said(tmp_path, phase, "anna@desk: it answers nonsense")
    assert judgement is not None
    assert judgement.verdict is Verdict.INCONCLUSIVE
    words = "rolled back on request at 25 %; rolled back by anna@desk: it answers nonsense at 20"
    assert judgement.summary.startswith(words)
    assert judgement.summary.endswith(" UTC")


def test_what_its_own_controller_rolled_back_nobody_else_took_back(tmp_path: Path) -> None:
    assert said(tmp_path, Phase.ROLLED_BACK, "r2@host.123") is None


def test_a_canary_that_goes_on_was_not_taken_back(tmp_path: Path) -> None:
    assert said(tmp_path, Phase.BAKING, "anna") is None
