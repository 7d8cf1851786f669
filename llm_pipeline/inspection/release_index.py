"""The index of a store's releases: what the list of the newest of them shows, in one document.

It cannot make a reader believe what is no longer true. Whoever changes a release marks it first
(`llm_pipeline.release.changes`), a reader looks for marks before it reads the index, and a release with a mark is read
from its records. The mark goes once the index holds the release as it was read after the change. An index that is
missing or damaged is made anew from the records. What serves is not in it: pointers are always read.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic import Field, ValidationError

from llm_pipeline.base.errors import ConfigError, IntegrityError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen
from llm_pipeline.inspection.listing import ReleaseRow, release_row
from llm_pipeline.inspection.release_artifacts import DamagedRow, results_in_order
from llm_pipeline.release.changes import changed_releases, changing, remove_marks
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.decision import read_decisions
from llm_pipeline.release.flow import clears_up
from llm_pipeline.release.measured_cost import MeasuredCost, release_cost
from llm_pipeline.release.record import read_release_record, release_record_name, report_name
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict
from llm_pipeline.store.references import release_ids

log = get_logger(__name__)

INDEXED = 10_000
"""The newest releases of a store that its index holds: 6 MB, which a report reads and writes in a second of CPU."""
INDEX_NAME = "index/releases.json"
_READERS = 8
_TRIES = 20


class Figure(Frozen):
    """One of the few figures on top of a release's report: size, speed, accuracy."""

    label: str
    value: str
    note: str = ""


class IndexedRelease(Frozen):
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


Found = IndexedRelease | DamagedRow | None


class _Index(Frozen):
    releases: dict[str, IndexedRelease]


@dataclass(frozen=True)
class Releases:
    """The newest releases of a store, and what cannot be read of them."""

    whole: tuple[IndexedRelease, ...]
    damaged: tuple[DamagedRow, ...]


def read_releases(store: ArtifactStore) -> Releases:
    """The releases of a store as they are now, the newest first: all of them, or at least the newest `INDEXED`.

    Raises:
        Transient: The store cannot be read now.
        ConfigError: There is no such store.
    """
    marked = sorted(changed_releases(store))  # before the index: marks go after it was written
    index, _ = _read(store)
    found = (dict(index.releases) if index else _made_anew(store)) | _read_all(store, marked)
    whole = [one for one in found.values() if isinstance(one, IndexedRelease)]
    newest = sorted(whole, key=lambda one: one.row.resolved_at, reverse=True)
    return Releases(tuple(newest), tuple(one for one in found.values() if isinstance(one, DamagedRow)))


def index_release(store: ArtifactStore, release_id: str) -> None:
    """Write a release into the index, or take it out if it is gone; then its marks go.

    Raises:
        Transient: The store cannot be used now; the marks stay.
    """
    marks = changed_releases(store).get(release_id, ())
    for _ in range(_TRIES):
        index, revision = _read(store)
        if index is None:
            _made_anew(store)
            continue
        found = read_indexed(store, release_id)
        if isinstance(found, DamagedRow):
            return
        releases = {name: one for name, one in index.releases.items() if name != release_id}
        with contextlib.suppress(Conflict):
            _write(store, releases | ({release_id: found} if found else {}), revision)
            remove_marks(store, marks)
            return
    raise Conflict("the index of releases changes faster than it can be written", where=store.uri)


def read_indexed(store: ArtifactStore, release_id: str) -> Found:
    """A release as its records say; None if there is none.

    Raises:
        Transient: The store cannot be read now.
    """
    try:
        if store.read_document(release_record_name(release_id)) is None:
            return None
        flow = ReleaseProgress(store, read_release_record(store, release_id))
        results, decisions = results_in_order(flow), read_decisions(store, release_id)
        return IndexedRelease(
            row=release_row(flow, results, decisions),
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
        return DamagedRow(document=f"releases/{release_id}", problem=str(error))


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


def _read(store: ArtifactStore) -> tuple[_Index | None, str | None]:
    """The index and its revision; None where it has to be made anew."""
    try:
        document = store.read_document(INDEX_NAME)
    except IntegrityError:
        store.delete_document(INDEX_NAME)
        return None, None
    if document is None:
        return None, None
    try:
        return _Index.model_validate(document.value), document.revision
    except ValidationError:
        return None, document.revision


def _write(store: ArtifactStore, releases: Mapping[str, IndexedRelease], revision: str | None) -> None:
    newest = sorted(releases.items(), key=lambda entry: entry[1].row.resolved_at, reverse=True)[:INDEXED]
    index = _Index(releases=dict(newest))
    store.write_document(INDEX_NAME, index.model_dump(mode="json"), revision)


def _made_anew(store: ArtifactStore) -> dict[str, Found]:
    """All releases, read from their records and written as the index; a damaged one is marked: it is read again."""
    _, revision = _read(store)
    found = _read_all(store, release_ids(store))
    try:
        for release_id in (name for name, one in found.items() if isinstance(one, DamagedRow)):
            with changing(store, release_id):
                log.warning("a release cannot be read", release=release_id)
        whole = {name: one for name, one in found.items() if isinstance(one, IndexedRelease)}
        _write(store, whole, revision)
    except Transient as error:  # somebody else made it, or this process may only read
        log.warning("the index of releases is not written", reason=str(error))
    return found


def _read_all(store: ArtifactStore, names: Sequence[str]) -> dict[str, Found]:
    with ThreadPoolExecutor(_READERS) as pool:
        return dict(zip(names, pool.map(lambda name: read_indexed(store, name), names), strict=True))
