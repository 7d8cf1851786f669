"""Retention: what a store keeps, and how the rest goes.

Kept are what pointers name, and the releases that are on their way, among the newest of their config, or young; with
each, all that its documents name. What nothing names, and is older than `keep_days`, goes.

- **Nothing goes on a guess.** What cannot be listed, read or understood ends a run before it removes anything.
- **Who runs meanwhile** renews every artifact that it reuses or publishes again, before it names it
  (`ArtifactStore.renew`), and the age of each artifact is looked at once more when its turn comes.
- **Killed anywhere, the next run goes on.** Of a release its record goes first, of an artifact its completion marker:
  what is left then is no release and no artifact, and goes as a leftover.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import JsonValue, ValidationError

from llm_pipeline.base.directory_listing import list_directories, walk_files
from llm_pipeline.base.errors import PipelineError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.quantities import byte_size
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.base.text_table import readable_time, titled_columns
from llm_pipeline.canary.record import CanaryRecord
from llm_pipeline.config.deployment import Deployment, Retention
from llm_pipeline.hub.kept_data_sets import kept_data_sets, remove_kept
from llm_pipeline.release.claim import readable_claims
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.execute import StageRecord, summary_name
from llm_pipeline.release.record import ReleaseRecord, release_record_name, report_name
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.store.artifact_store import Document, StoredArtifact
from llm_pipeline.store.documents import understood
from llm_pipeline.store.lease import lease_of
from llm_pipeline.store.references import all_pointers

_READERS = 16
_DIGEST = re.compile(r"([0-9a-f]{12})[0-9a-f]{52}")
_RELEASE_ID = re.compile(r"[a-z0-9][a-z0-9_.-]*-[0-9a-f]{8}-[0-9a-f]{8}")
"""What fails before it has an id is filed under the config's name."""
_BEGIN_OF_KEY = re.compile("[0-9a-f]{24}")
"""Name of a stage's work directory."""
_TELLING = re.compile(r"/results/|/release\.json$|/canary-")
"""Documents of a release that say what it uses."""

log = get_logger(__name__)

What = Literal["release", "run", "stage record", "artifact", "leftover", "work directory", "data set"]


class Going(Frozen):
    """One thing that a retention run removes; `bytes` are None where they are not known."""

    what: What
    name: str
    why: str
    bytes: int | None = None


class Keeping(Frozen):
    """A release that stays, and why."""

    release_id: str
    why: tuple[str, ...]


class RetentionReport(Frozen):
    """What a retention run kept and removed, or would remove.

    Attributes:
        deleted: Whether it was done; else it is what would be done.
        bytes_removed: Of what goes, as far as sizes are known.
        skipped: What was to go and stays, and why.
    """

    deployment: str
    store: str
    deleted: bool
    rules: Retention
    kept: tuple[Keeping, ...]
    artifacts_kept: int
    going: tuple[Going, ...]
    bytes_removed: int
    skipped: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """The report as lines of text, with tables."""
        yield f"{'retention' if self.deleted else 'retention, dry run'}: {self.deployment}, {self.store}"
        yield from ("", f"kept{'' if self.kept else ': no release'}, with {self.artifacts_kept} artifacts")
        if self.kept:
            yield from titled_columns(
                ("release", "because"), [(one.release_id, "; ".join(one.why)) for one in self.kept]
            )
        yield from ("", f"{'removed' if self.deleted else 'would be removed'}{'' if self.going else ': nothing'}")
        if self.going:
            cells = [
                (one.what, _DIGEST.sub(r"\1", one.name), "" if one.bytes is None else byte_size(one.bytes), one.why)
                for one in self.going
            ]
            yield from titled_columns(("what", "name", "size", "because"), cells, right=("size",))
        yield ""
        yield from (f"stays: {name}" for name in self.skipped)
        freed = byte_size(self.bytes_removed)
        yield f"{freed} freed" if self.deleted else f"{freed} would be freed; nothing was changed: --delete does it"


@dataclass(frozen=True)
class _Removal:
    """Something that goes, and how; `remove` returns False if it came into use meanwhile."""

    going: Going
    remove: Callable[[], object]


@dataclass(frozen=True)
class _Release:
    """A release, as far as it counts here; without a record (its removal was interrupted) it has only documents."""

    documents: tuple[str, ...]
    revision: str | None = None
    record: ReleaseRecord | None = None
    active_at: datetime | None = None
    artifacts: frozenset[ArtifactRef] = frozenset()
    keys: frozenset[str] = frozenset()
    open_canaries: tuple[str, ...] = ()


def collect_garbage(deployment: Deployment, *, delete: bool, now: datetime | None = None) -> RetentionReport:
    """Find what is not needed any more, and remove it if requested.

    Args:
        deployment: Whose store, whose rules, and whose work directories on this machine.
        delete: False changes nothing.
        now: The time that ages are counted from; None for the present.

    Raises:
        IntegrityError: Something in the store cannot be understood, so it is not known what is in use.
        Transient: The store, or a part of it, cannot be read now: likewise.
    """
    store = open_store(deployment.store)
    run = _Run(store, deployment, now or datetime.now(UTC))
    removals = list(run.removals())
    skipped = []
    for removal in removals if delete else ():
        name = f"{removal.going.what} {removal.going.name}"
        try:
            if removal.remove() is False:
                skipped.append(f"{name}, which came into use meanwhile")
        except OSError as error:  # of this machine's directories: a container's files belong to another user
            skipped.append(f"{name}, which cannot be removed: {error.strerror}")
    return RetentionReport(
        deployment=deployment.name,
        store=store.uri,
        deleted=delete,
        rules=deployment.retention,
        kept=tuple(Keeping(release_id=release_id, why=why) for release_id, why in sorted(run.kept.items())),
        artifacts_kept=run.artifacts_kept,
        going=tuple(removal.going for removal in removals),
        bytes_removed=sum(removal.going.bytes or 0 for removal in removals),
        skipped=tuple(skipped),
    )


class _Run:
    """Everything in a store that names something, and what follows from it.

    Attributes:
        kept: Releases that stay, with every reason.
        artifacts_kept: How many artifacts stay; known once all removals are.
    """

    def __init__(self, store: ArtifactStore, deployment: Deployment, now: datetime) -> None:
        self._store = store
        self._now = now
        self._work_root = Path(deployment.work_root)
        self._rules = deployment.retention
        self._limit = now - timedelta(days=self._rules.keep_days)
        self._releases = _read_releases(store)
        self._pointers = all_pointers(store)
        self.kept = dict(self._kept())
        self.artifacts_kept = 0
        self._running = set[str]()

    def removals(self) -> Iterator[_Removal]:
        """All that goes, in the order in which it may go."""
        yield from self._runs()
        yield from self._gone_releases()
        needed = {reference.pointer.repository for reference in self._pointers}
        needed |= {ref for release_id in self.kept for ref in self._releases[release_id].artifacts}
        yield from self._stage_records(needed)
        stored = list(self._store.artifacts())
        old = [one for one in stored if one.ref not in needed and one.published_at <= self._limit]
        yield from self._artifacts(sorted(old, key=lambda one: (one.ref.kind, one.ref.digest)))
        self.artifacts_kept = len(stored) - len(old)
        yield from self._leftovers()
        yield from self._of_this_machine({one.ref for one in stored}.difference(one.ref for one in old))

    def _kept(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        by_config: dict[str, list[tuple[datetime, str]]] = {}
        for release_id, release in self._releases.items():
            if release.record is not None:
                by_config.setdefault(release.record.release.name, []).append((release.record.created_at, release_id))
        newest = {name for made in by_config.values() for _, name in sorted(made)[-self._rules.keep_releases :]}
        claims, damaged = readable_claims(self._store)
        if damaged:
            raise damaged[0].error
        parties = [
            (one.release_id, one.party)
            for claim in claims.values()
            for one in claim.everyone
            if self._now - one.renewed_at <= timedelta(hours=one.stale_after_hours)
        ]
        for release_id, release in self._releases.items():
            pointers = [one for one in self._pointers if one.pointer.release_id == release_id]
            why = [f"{one.name} of {one.model_id} on {one.target}" for one in pointers]
            why += [f"running: {party}" for claimed, party in parties if claimed == release_id]
            why += [f"its canary on {target} is not finished" for target in release.open_canaries]
            if release_id in newest and release.record:
                why.append(f"one of the newest {self._rules.keep_releases} of {release.record.release.name}")
            if release.active_at and release.active_at > self._limit:
                why.append(f"active in the last {self._rules.keep_days:g} days")
            if why:
                yield release_id, tuple(why)

    def _runs(self) -> Iterator[_Removal]:
        gone = self._releases.keys() - self.kept.keys()
        for name, document in _read_documents(self._store, self._store.list_documents("runs")):
            if document.value.get("release_id") in gone:
                going = Going(what="run", name=name, why="its release goes")
                yield _Removal(going, partial(self._delete_if_unchanged, name, document.revision))

    def _gone_releases(self) -> Iterator[_Removal]:
        for release_id, release in self._releases.items():
            if release_id not in self.kept:
                why = "its removal was interrupted"
                if release.record is not None:
                    since, config = readable_time(release.record.created_at), release.record.release.name
                    why = f"resolved {since} UTC, not among the newest {self._rules.keep_releases} of {config}"
                going = Going(what="release", name=release_id, why=f"{why}, not in use")
                yield _Removal(going, partial(self._remove_release, release_id, release))

    def _remove_release(self, release_id: str, release: _Release) -> bool:
        name = release_record_name(release_id)
        document = self._store.read_document(name)
        if (document.revision if document else None) != release.revision:
            return False
        report, summary = report_name(release_id), summary_name(release_id)  # a listing of its documents finds neither
        for one in (summary, name, report, *release.documents):
            self._store.delete_document(one)
        return True

    def _stage_records(self, needed: set[ArtifactRef]) -> Iterator[_Removal]:
        """Results that no kept release uses; the artifacts of those that stay are added to the needed ones."""
        keys = {key for release_id in self.kept for key in self._releases[release_id].keys}
        for name, document in _read_documents(self._store, self._store.list_documents("stages")):
            lease, key = lease_of(document, name), PurePosixPath(name).stem
            result = None
            if lease.conclusion:
                with suppress(ValidationError):  # no stage can use it
                    result = StageRecord.model_validate(lease.conclusion).result
            if not lease.free:
                self._running.add(key[:24])
            if key in keys or not lease.free or (result and _ended_at(result) > self._limit):
                needed |= set(result.artifacts.values()) if result else set()
                continue
            why = "no kept release uses it" if result else "without a result"
            going = Going(what="stage record", name=key, why=why)
            yield _Removal(going, partial(self._delete_if_unchanged, name, document.revision))

    def _artifacts(self, old: Sequence[StoredArtifact]) -> Iterator[_Removal]:
        with ThreadPoolExecutor(_READERS) as pool:  # a remote store answers each question after a while
            sizes = list(pool.map(lambda artifact: _size(self._store, artifact.ref), old))
        for artifact, size in zip(old, sizes, strict=True):
            why = f"nothing kept names it, and it was used last {readable_time(artifact.published_at)} UTC"
            going = Going(what="artifact", name=str(artifact.ref), why=why, bytes=size)
            yield _Removal(going, partial(self._store.remove, artifact.ref, published_before=self._limit))

    def _leftovers(self) -> Iterator[_Removal]:
        for leftover in self._store.leftovers(self._now - self._limit):
            why = f"left by an interrupted publication at {readable_time(leftover.changed_at)} UTC"
            going = Going(what="leftover", name=leftover.name, why=why, bytes=leftover.bytes)
            yield _Removal(going, partial(self._store.remove_leftover, leftover))

    def _of_this_machine(self, staying: set[ArtifactRef]) -> Iterator[_Removal]:
        for path, why in self._left_here(staying):
            found = [one.lstat() for one in (path, *walk_files(path))]
            if max(one.st_mtime for one in found) <= self._limit.timestamp():
                going = Going(what="work directory", name=str(path), why=why, bytes=sum(one.st_size for one in found))
                yield _Removal(going, partial(shutil.rmtree, path))
        for data_set in kept_data_sets(self._work_root / "datasets"):
            if data_set.used_at <= self._limit:
                why = f"no release has asked for it since {readable_time(data_set.used_at)} UTC"
                going = Going(what="data set", name=str(data_set.path), why=why, bytes=data_set.bytes)
                yield _Removal(going, partial(remove_kept, data_set))

    def _left_here(self, staying: set[ArtifactRef]) -> Iterator[tuple[Path, str]]:
        for path in (path for room in list_directories(self._work_root) for path in list_directories(room)):
            if path.parent.name == "jobs" and _RELEASE_ID.fullmatch(path.name) and path.name not in self.kept:
                yield path, "its release is not kept"
            elif _BEGIN_OF_KEY.fullmatch(path.name) and path.name not in self._running:
                yield path, "its stage was stopped, or failed, and was not run again"
        for kind in list_directories(self._work_root / "cache" / "artifacts"):
            for path in list_directories(kind):
                if ArtifactRef(kind=kind.name, digest=path.name) not in staying:
                    yield path, "a copy of an artifact that the store has no more"

    def _delete_if_unchanged(self, name: str, revision: str) -> bool:
        document = self._store.read_document(name)
        if document is not None and document.revision != revision:
            return False
        self._store.delete_document(name)
        return True


def named_artifacts(value: JsonValue) -> Iterator[ArtifactRef]:
    """Every artifact that a document names, wherever in it."""
    if isinstance(value, Mapping):
        kind, digest = value.get("kind"), value.get("digest")
        if len(value) == 2 and isinstance(kind, str) and isinstance(digest, str):  # noqa: PLR2004 - just those two
            yield ArtifactRef(kind=kind, digest=digest)
        else:
            yield from (ref for part in value.values() for ref in named_artifacts(part))
    elif isinstance(value, list):
        yield from (ref for part in value for ref in named_artifacts(part))


def _read_releases(store: ArtifactStore) -> dict[str, _Release]:
    names: dict[str, list[str]] = {}
    for name in store.list_documents("releases"):
        names.setdefault(PurePosixPath(name).parts[1], []).append(name)
    telling = [name for listed in names.values() for name in listed if _TELLING.search(name)]
    documents = dict(_read_documents(store, telling))
    found = {}
    for release_id, listed in names.items():
        document = documents.get(release_record_name(release_id))
        if document is None:
            if _RELEASE_ID.fullmatch(release_id):
                found[release_id] = _Release(tuple(listed))
            continue
        there = {name: documents[name] for name in listed if name in documents}
        record = understood(ReleaseRecord, document.value, release_record_name(release_id))
        results = [understood(StageResult, one.value, name) for name, one in there.items() if "/results/" in name]
        canaries = [understood(CanaryRecord, one.value, name) for name, one in there.items() if "/canary-" in name]
        found[release_id] = _Release(
            documents=tuple(listed),
            revision=document.revision,
            record=record,
            active_at=max((record.created_at, *map(_ended_at, results))),
            artifacts=frozenset(ref for one in there.values() for ref in named_artifacts(one.value)),
            keys=frozenset(result.key for result in results),
            open_canaries=tuple(canary.target for canary in canaries if not canary.settled),
        )
    return found


def _read_documents(store: ArtifactStore, names: Sequence[str]) -> list[tuple[str, Document]]:
    """Those that are still there; side by side, because a remote store answers each question after a while."""
    with ThreadPoolExecutor(_READERS) as pool:
        documents = zip(names, pool.map(store.read_document, names), strict=True)
        return [(name, document) for name, document in documents if document is not None]


def _ended_at(result: StageResult) -> datetime:
    return result.timings.started_at + timedelta(seconds=result.timings.total_seconds)


def _size(store: ArtifactStore, ref: ArtifactRef) -> int | None:
    try:
        return store.manifest(ref).size
    except PipelineError:  # damaged: it goes all the same
        return None
