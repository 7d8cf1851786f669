"""What the list of a store's releases shows of each: a small document, so that few have to be read.

A release's report writes its summary. Whoever changes the release empties it first (`release.execute.outdate_summary`),
and a release with an empty or damaged one is read from its records. What serves is not in it: pointers are always read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from pathlib import PurePosixPath

from pydantic import Field, ValidationError

from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.base.records import Frozen
from llm_pipeline.base.text_table import readable_time
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.inspection.release_artifacts import results_in_order
from llm_pipeline.release.candidate import is_trial
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.decision import Decision, read_decisions, refusal
from llm_pipeline.release.execute import summary_name
from llm_pipeline.release.flow import clears_up
from llm_pipeline.release.measured_cost import MeasuredCost, release_cost
from llm_pipeline.release.record import read_release_record, release_record_name, report_name
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.documents import DamagedDocument
from llm_pipeline.store.signed_documents import replace_document

_READERS = 8


class Figure(Frozen):
    """One of the few figures on top of a release's report: size, speed, accuracy."""

    label: str
    value: str
    note: str = ""


class ReleaseRow(Frozen):
    """A release.

    Attributes:
        verdict: GO once it was settled, else that of the gate that stopped it, `denied`, `timed out` or `ended` where a
            person did; empty while it is open.
        reached: The stage, with its subject, that ran last.
        serves: The pointers that name it.
        pauses: Its canaries that are paused.
    """

    release_id: str
    config: str
    model: str
    commit: str
    resolved_at: datetime
    verdict: str
    reached: str
    serves: tuple[str, ...] = ()
    pauses: tuple[str, ...] = ()

    def cells(self) -> dict[str, str]:
        """Its line of a table, by the titles of the columns."""
        return {
            "release": self.release_id,
            "model": f"{self.model}@{self.commit[:8]}",
            "resolved (UTC)": readable_time(self.resolved_at),
            "verdict": self.verdict or "open",
            "reached": "; ".join([self.reached, *self.pauses]),
            "serves": ", ".join(self.serves),
        }


class ReleaseSummary(Frozen):
    """A release as the list shows it.

    Attributes:
        row: Without what serves and what is paused, which change without the release.
        recipes: The recipe that is released on each target.
        verdicts: Of its gates, by stage and subject.
        figures: Of its report, if that was written after its last stage.
        cost: What its stages took.
        currency: Of the price.
        decided: Who answered its questions, and how.
    """

    row: ReleaseRow
    recipes: dict[str, str] = Field(default={})
    verdicts: dict[str, str] = Field(default={})
    figures: tuple[Figure, ...] = ()
    cost: MeasuredCost = MeasuredCost()
    currency: str = ""
    decided: tuple[str, ...] = ()


Found = ReleaseSummary | DamagedDocument | None


def read_releases(store: ArtifactStore) -> tuple[list[ReleaseSummary], list[DamagedDocument]]:
    """The releases of a store as they are now, the newest first, and those that cannot be read.

    Raises:
        Transient: The store cannot be read now.
        ConfigError: There is no such store.
    """
    names = [PurePosixPath(name).stem for name in store.list_documents("summaries")]
    with ThreadPoolExecutor(_READERS) as pool:  # a remote store answers each question after a while
        found = list(pool.map(partial(_read, store), names))
    whole = sorted(
        (one for one in found if isinstance(one, ReleaseSummary)), key=lambda one: one.row.resolved_at, reverse=True
    )
    return whole, [one for one in found if isinstance(one, DamagedDocument)]


def write_summary(store: ArtifactStore, release_id: str) -> None:
    """Write what the list of releases shows of one, by its records.

    Raises:
        Transient: The store cannot be used now.
    """
    found = summarize(store, release_id)
    if isinstance(found, ReleaseSummary):
        replace_document(store, summary_name(release_id), found.model_dump(mode="json"))


def _read(store: ArtifactStore, release_id: str) -> Found:
    try:
        document = store.read_document(summary_name(release_id))
        if document is not None and document.value:
            return ReleaseSummary.model_validate(document.value)
    except (IntegrityError, ValidationError):
        pass
    return summarize(store, release_id)


def summarize(store: ArtifactStore, release_id: str) -> Found:
    """A release as its records say; None if there is none.

    Raises:
        Transient: The store cannot be read now.
    """
    try:
        if store.read_document(release_record_name(release_id)) is None:
            return None
        flow = ReleaseProgress(store, read_release_record(store, release_id))
        results, decisions = results_in_order(flow), read_decisions(store, release_id)
        return ReleaseSummary(
            row=_row(flow, results, decisions),
            recipes={one.subject: str(one.metrics["recipe"]) for one in results if one.metrics.get("recipe")},
            verdicts={
                f"{one.stage} {one.subject}".strip(): one.judgement.verdict.value for one in results if one.judgement
            },
            figures=_figures(store, release_id, results),
            cost=release_cost(flow.record, results),
            currency=flow.record.deployment.currency,
            decided=tuple(f"{one.step}: {one.in_words}" for one in decisions if one.answer != "waiting"),
        )
    except (IntegrityError, ConfigError) as error:
        return DamagedDocument.of(f"releases/{release_id}", error)


def _row(flow: ReleaseProgress, results: Sequence[StageResult], decisions: Sequence[Decision]) -> ReleaseRow:
    """Without what serves and what is paused."""
    refused = refusal(decisions, flow.resolved_at)
    working = [result for result in results if not clears_up(result.stage)]
    return ReleaseRow(
        release_id=flow.record.release_id,
        config=flow.release.name,
        model=flow.record.model.id,
        commit=flow.record.model.commit,
        resolved_at=flow.resolved_at,
        verdict=_last_word(results) or (refused.answer if refused else ""),
        reached=f"{working[-1].stage} {working[-1].subject}".strip() if working else "",
    )


def _last_word(results: Sequence[StageResult]) -> str:
    """A recipe, or a candidate, that failed its gate does not decide when another one was chosen."""
    for result in reversed(results):
        if result.stage == "settle":
            return Verdict.GO.value
        aside = result.stage == "accuracy" or is_trial(result.stage, result.subject)
        if result.judgement is not None and not aside and result.judgement.verdict is not Verdict.GO:
            return result.judgement.verdict.value
    return ""


def _figures(store: ArtifactStore, release_id: str, results: Sequence[StageResult]) -> tuple[Figure, ...]:
    """Those of the report; none while it is older than what was done since."""
    working = [one.timings for one in results if not clears_up(one.stage)]
    try:
        report = json.loads(store.read_file(report_name(release_id, "json")))
        collected = datetime.fromisoformat(report["collected_at"])
        if any(one.started_at + timedelta(seconds=one.total_seconds) > collected for one in working):
            return ()
        return tuple(Figure.model_validate(one) for one in report["highlights"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return ()
