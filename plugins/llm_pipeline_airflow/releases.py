"""Releases as the store knows them, summed up for a list."""

from __future__ import annotations

from dataclasses import dataclass

from llm_pipeline.flow import Flow
from llm_pipeline.release_record import read_record
from llm_pipeline.stages.contract import StageResult
from llm_pipeline.store import ArtifactStore
from llm_pipeline.verdict import Verdict


@dataclass(frozen=True)
class ReleaseSummary:
    """One release.

    Attributes:
        verdict: GO when it was settled, else that of the gate that stopped it; empty while it is open.
        reached: Its last stage and that stage's subject.
    """

    release_id: str
    model: str
    commit: str
    created_at: str
    verdict: str
    reached: str


def releases_of(store: ArtifactStore, config_name: str) -> list[ReleaseSummary]:
    """The releases made from one release config.

    Raises:
        IntegrityError: A record cannot be understood.
    """
    names = [name for name in store.list_documents("releases") if name.endswith("/release.json")]
    records = [read_record(store, name.split("/")[1]) for name in names]
    return [_summary(Flow(store, record)) for record in records if record.release.name == config_name]


def _summary(flow: Flow) -> ReleaseSummary:
    results = sorted(flow.results().values(), key=lambda result: result.timings.started_at)
    return ReleaseSummary(
        release_id=flow.record.release_id,
        model=flow.record.model.id,
        commit=flow.record.model.commit,
        created_at=flow.record.created_at.strftime("%Y-%m-%d %H:%M UTC"),
        verdict=_verdict(results),
        reached=_reached(results),
    )


def _verdict(results: list[StageResult]) -> str:
    """The last word: a recipe that failed its gate does not decide when another one was chosen."""
    for result in reversed(results):
        if result.stage == "settle":
            return Verdict.GO.value
        if result.judgement is not None and result.stage != "accuracy" and result.judgement.verdict is not Verdict.GO:
            return result.judgement.verdict.value
    return ""


def _reached(results: list[StageResult]) -> str:
    working = [result for result in results if result.stage not in ("report", "staging_down", "rollback")]
    return f"{working[-1].stage} {working[-1].subject}".strip() if working else ""
