"""What the retention decides by: everything in a store that names something, and this machine's work directories."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath

from pydantic import JsonValue, ValidationError

from llm_pipeline.base import detached
from llm_pipeline.base.directory_listing import list_directories, list_directory
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.record import CanaryRecord
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.hub.kept_data_sets import KeptDataSet, kept_data_sets
from llm_pipeline.release.claim import ClaimState, read_claims
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.execute import StageRecord
from llm_pipeline.release.record import parse_record
from llm_pipeline.store.artifact_store import ArtifactStore, Document, Leftover, StoredArtifact
from llm_pipeline.store.lease import lease_of
from llm_pipeline.store.pending_deletion import Condemned, read_condemned
from llm_pipeline.store.references import PointerReference, placed_pointers

_READERS = 16
_RELEASE_ID = re.compile(r"[a-z0-9][a-z0-9_.-]*-[0-9a-f]{8}-[0-9a-f]{8}")


@dataclass(frozen=True)
class ReleaseState:
    """A release, as far as it counts here.

    Attributes:
        documents: Names of all its documents.
        revision: Of its record; None when there is none: its removal was interrupted.
        config: The release config's name; empty when the record cannot be understood.
        resolved_at: When its latest run began; None as above.
        active_at: When a stage of it ended last, or as above.
        ended: Whether its latest run has written its report, which every run does last.
        artifacts: All that any of its documents names.
        keys: Stage keys of its results.
        open_canaries: Targets with a canary that was neither promoted nor rolled back.
    """

    release_id: str
    documents: tuple[str, ...]
    revision: str | None = None
    config: str = ""
    targets: frozenset[str] = frozenset()
    resolved_at: datetime | None = None
    active_at: datetime | None = None
    ended: bool = False
    artifacts: frozenset[ArtifactRef] = frozenset()
    keys: frozenset[str] = frozenset()
    open_canaries: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecordState:
    """The document of a stage key, or of a calibration.

    Attributes:
        document: As read, for the compare-and-swap of its removal.
        held: Somebody computes under it.
        artifacts: What its result names; empty without a result.
        ended_at: When a stage's result was computed; None without one.
    """

    key: str
    document: Document
    held: bool
    artifacts: frozenset[ArtifactRef] = frozenset()
    ended_at: datetime | None = None


@dataclass(frozen=True)
class LeaseDocument:
    """A lease that is not a stage key's."""

    name: str
    held: bool


@dataclass(frozen=True)
class WorkDirectory:
    """Job records and logs of a release on this machine."""

    path: Path
    changed_at: datetime
    running: bool

    @property
    def release_id(self) -> str:
        """The release, or what was asked for before it had a name."""
        return self.path.name


@dataclass(frozen=True)
class StoreState:
    """A store as it was read, and this machine's work directories.

    Attributes:
        places: Targets that the deployment has places for.
        claims: Who holds the claim on each model, and who waits for it.
        runs: Releases by the document that says which one a DAG run works on.
        data_sets: What this machine has fetched of the hub's data sets.
    """

    releases: tuple[ReleaseState, ...] = ()
    pointers: tuple[PointerReference, ...] = ()
    records: tuple[RecordState, ...] = ()
    artifacts: tuple[StoredArtifact, ...] = ()
    condemned: Mapping[ArtifactRef, Condemned] = field(default_factory=dict)
    claims: tuple[ClaimState, ...] = ()
    leases: tuple[LeaseDocument, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    runs: Mapping[str, str] = field(default_factory=dict)
    work: tuple[WorkDirectory, ...] = ()
    data_sets: tuple[KeptDataSet, ...] = ()
    places: frozenset[str] = frozenset()


def read_state(store: ArtifactStore, deployment: Deployment) -> StoreState:
    """Read all that a retention run decides by.

    Condemnations are read before whatever makes an artifact reachable: one that is spared or named meanwhile is then
    seen either here or by the compare-and-swap of its removal.

    Raises:
        IntegrityError: A document that says what is in use is damaged: nothing may be removed then.
        Transient: Something cannot be read or listed: likewise.
    """
    condemned = read_condemned(store)
    artifacts = tuple(store.artifacts())
    leftovers = tuple(store.leftovers(timedelta(hours=deployment.retention.grace_hours)))
    return StoreState(
        condemned=condemned,
        artifacts=artifacts,
        leftovers=leftovers,
        records=tuple(_records(store)),
        releases=tuple(_releases(store)),
        pointers=tuple(reference for placed in placed_pointers(store) for reference in placed.references()),
        claims=tuple(read_claims(store).values()),
        leases=tuple(_leases(store)),
        runs=dict(_runs(store)),
        work=tuple(_work_directories(Path(deployment.work_root) / "jobs")),
        data_sets=tuple(kept_data_sets(Path(deployment.work_root) / "datasets")),
        places=frozenset(deployment.places),
    )


def is_release_id(text: str) -> bool:
    """Whether it has the form of a release's id: what fails before it has one is filed under the config's name."""
    return _RELEASE_ID.fullmatch(text) is not None


def _records(store: ArtifactStore) -> Iterator[RecordState]:
    """Stage records with a readable result; others cannot be reused by any stage."""
    for name, document in _documents(store, "stages"):
        lease = lease_of(document, name)
        try:
            result = StageRecord.model_validate(lease.conclusion).result if lease.conclusion else None
        except ValidationError:
            continue
        yield RecordState(
            key=PurePosixPath(name).stem,
            document=document,
            held=not lease.free,
            artifacts=frozenset(result.artifacts.values()) if result else frozenset(),
            ended_at=_ended_at(result) if result else None,
        )


def _releases(store: ArtifactStore) -> Iterator[ReleaseState]:
    names: dict[str, list[str]] = {}
    for name in store.list_documents("releases"):
        names.setdefault(PurePosixPath(name).parts[1], []).append(name)
    documents = dict(_read(store, [name for listed in names.values() for name in listed if _names_artifacts(name)]))
    for release_id, listed in names.items():
        release = _release(release_id, listed, documents)
        if release.revision is not None or is_release_id(release_id):
            yield release


def _names_artifacts(name: str) -> bool:
    """Of a release's documents, its record, results and canaries; not its plan and report."""
    path = PurePosixPath(name)
    return path.name == "release.json" or path.parent.name == "results" or path.name.startswith("canary-")


def _release(release_id: str, names: list[str], documents: Mapping[str, Document]) -> ReleaseState:
    base = f"releases/{release_id}"
    record = documents.get(f"{base}/release.json")
    if record is None:
        return ReleaseState(release_id=release_id, documents=tuple(names))
    there = [(name, documents[name]) for name in names if name in documents]
    named = frozenset(ref for _, document in there for ref in named_artifacts(document.value))
    known = ReleaseState(release_id, tuple(names), record.revision, artifacts=named)
    results = [document for name, document in there if name.startswith(f"{base}/results/")]
    canaries = [document for name, document in there if name.startswith(f"{base}/canary-")]
    try:
        return _understood(known, record, results, canaries)
    except ValidationError:  # of another version of this package: it is kept, with all that it names
        return known


def _understood(
    state: ReleaseState, record: Document, results: list[Document], canaries: list[Document]
) -> ReleaseState:
    release = parse_record(record.value)
    ended = [StageResult.model_validate(document.value) for document in results]
    open_canaries = [CanaryRecord.model_validate(document.value) for document in canaries]
    began = release.created_at
    return replace(
        state,
        config=release.release.name,
        targets=frozenset(target.name for target in release.release.targets),
        resolved_at=began,
        active_at=max((began, *(_ended_at(result) for result in ended))),
        ended=any(result.stage == "report" and result.timings.started_at >= began for result in ended),
        keys=frozenset(result.key for result in ended),
        open_canaries=tuple(canary.target for canary in open_canaries if not canary.settled),
    )


def named_artifacts(value: JsonValue) -> Iterator[ArtifactRef]:
    """Every artifact that a document names, wherever in it, also one of a form that this version does not know."""
    if isinstance(value, Mapping):
        kind, digest = value.get("kind"), value.get("digest")
        if len(value) == 2 and isinstance(kind, str) and isinstance(digest, str):  # noqa: PLR2004 - just those two
            yield ArtifactRef(kind=kind, digest=digest)
        else:
            yield from (ref for part in value.values() for ref in named_artifacts(part))
    elif isinstance(value, list):
        yield from (ref for part in value for ref in named_artifacts(part))


def _ended_at(result: StageResult) -> datetime:
    return result.timings.started_at + timedelta(seconds=result.timings.total_seconds)


def _leases(store: ArtifactStore) -> Iterator[LeaseDocument]:
    for name, document in _documents(store, "leases"):
        yield LeaseDocument(name, held=not lease_of(document, name).free)


def _runs(store: ArtifactStore) -> Iterator[tuple[str, str]]:
    for name, document in _documents(store, "runs"):
        yield name, str(document.value.get("release_id", ""))


def _documents(store: ArtifactStore, prefix: str) -> list[tuple[str, Document]]:
    return _read(store, store.list_documents(prefix))


def _read(store: ArtifactStore, names: Sequence[str]) -> list[tuple[str, Document]]:
    """Those that are still there; side by side, because a remote store answers each question after a while."""
    with ThreadPoolExecutor(min(_READERS, len(names) or 1)) as pool:
        documents = zip(names, pool.map(store.read_document, names), strict=True)
        return [(name, document) for name, document in documents if document is not None]


def _work_directories(jobs: Path) -> Iterator[WorkDirectory]:
    """Jobs in progress: their process runs, or one has a path in their directory as argument; not all have a record."""
    in_use = detached.arguments_in_use()
    for path in list_directories(jobs):
        attempts = [attempt for stage in list_directories(path) for attempt in list_directories(stage)]
        records = [detached.load(attempt / "process.json") for attempt in attempts]
        alive = any(process is not None and process.group_alive for process in records)
        running = alive or any(argument.startswith(f"{path}/") for argument in in_use)
        yield WorkDirectory(path, _newest_change(path, attempts), running)


def _newest_change(path: Path, attempts: Sequence[Path]) -> datetime:
    newest = 0.0
    places = [path, *list_directory(path), *(file for attempt in attempts for file in list_directory(attempt))]
    for place in (*places, *attempts):
        with contextlib.suppress(FileNotFoundError):  # its stage removed it meanwhile
            newest = max(newest, place.lstat().st_mtime)
    return datetime.fromtimestamp(newest, UTC)
