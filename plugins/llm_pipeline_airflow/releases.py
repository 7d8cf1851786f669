"""Releases and watches as the store knows them, summed up for a list."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from llm_pipeline.config.loading import load_release
from llm_pipeline.flow import Flow
from llm_pipeline.release_record import read_record
from llm_pipeline.stages.contract import StageResult
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.verdict import Verdict
from llm_pipeline.watch_record import read_status

_NOT_LOOKED = "not looked yet: the watch begins when the DAG is no longer paused and a triggerer runs"


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


@dataclass(frozen=True)
class WatchSummary:
    """One release config with a watch.

    Attributes:
        commit: What the revision named last; empty before the first look.
        words: The last decision.
        since: When it was decided.
        checked_at: A time at which it still held; the triggerer writes it every quarter of an hour.
    """

    config: str
    model: str
    revision: str
    commit: str
    words: str
    since: datetime | None
    checked_at: datetime | None


def watch_of(config_path: Path) -> WatchSummary | None:
    """What the watch of a release config decided last; None for a config without one.

    Raises:
        ConfigError: The release config is wrong.
        IntegrityError: What the watch wrote cannot be understood.
    """
    loaded = load_release(config_path)
    if loaded.config.watch is None:
        return None
    status = read_status(open_store(loaded.deployment.store), loaded.config.name)
    return WatchSummary(
        config=loaded.config.name,
        model=loaded.config.model.id,
        revision=loaded.config.model.revision,
        commit=status.commit if status else "",
        words=status.words if status else _NOT_LOOKED,
        since=status.since if status else None,
        checked_at=status.checked_at if status else None,
    )


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
