"""Doing what the retention decided; the order and the reasons are in this package's documentation."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

from llm_pipeline.base.errors import PipelineError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.hub.kept_data_sets import KeptDataSet, remove_kept
from llm_pipeline.inspection.release_index import index_release
from llm_pipeline.release.changes import changed_releases, changing
from llm_pipeline.release.execute import record_name
from llm_pipeline.retention.plan import FORCE, RetentionPlan, TooMuchToRemove, plan_retention, refusal, taken
from llm_pipeline.retention.report import Keeping, RetentionReport, Sizes, going
from llm_pipeline.retention.state import ReleaseState, WorkDirectory, read_state
from llm_pipeline.store import open_store
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict, Document
from llm_pipeline.store.lease import Lease, LeaseState, lease_of
from llm_pipeline.store.pending_deletion import RETENTION_LEASE, condemn, pardon, remove_condemned, remove_unfinished

_RECORD_LEASE_SECONDS = 60.0
_READERS = 16
_REPORT_FILES = ("report.html", "report.md")  # former versions wrote the second

log = get_logger(__name__)


def collect_garbage(
    deployment: Deployment, *, delete: bool, force: bool = False, now: datetime | None = None
) -> RetentionReport:
    """Find what is not needed any more, and remove it if requested.

    Args:
        deployment: Whose store, whose rules, and whose work directories on this machine.
        delete: False changes nothing.
        force: Take more of the store than the rules let a run take.
        now: The time that ages are counted from; None for the present.

    Raises:
        LeaseHeld: Another run removes things at this moment.
        LeaseLost: Another one took over while this process was stalled; it goes on from there.
        TooMuchToRemove: It would take more of the store than the rules let it; nothing was removed.
        IntegrityError: Something in the store cannot be understood, so it is not known what is in use.
        Transient: The store, or a part of it, cannot be read now: likewise.
    """
    store, now = open_store(deployment.store), now or datetime.now(UTC)
    if not delete:
        plan = plan_retention(read_state(store, deployment), deployment.retention, now)
        sizes = _sizes(store, plan)
        refused = refusal(taken(plan, sizes), deployment.retention.max_deleted_share)
        return _report(deployment, store, plan, sizes, now).model_copy(update={"refused": refused})
    with Lease(store, RETENTION_LEASE) as lease:
        report = _Collector(store, deployment, lease, now, force=force).run()
    for release_id in changed_releases(store):
        index_release(store, release_id)
    return report


class _Collector:
    """One run that removes; notes what was used meanwhile and stays."""

    def __init__(
        self, store: ArtifactStore, deployment: Deployment, lease: Lease, now: datetime, *, force: bool
    ) -> None:
        self._store = store
        self._deployment = deployment
        self._lease = lease
        self._now = now
        self._force = force
        self._skipped: list[str] = []

    def run(self) -> RetentionReport:
        first = self._plan()
        self._check_share(first)
        for name in first.runs:
            self._store.delete_document(name)
        for release in first.releases:
            self._lease.check()
            with changing(self._store, release.release_id):
                self._remove_release(release)
        for record in first.records:
            self._lease.check()
            self._remove_leased(record_name(record.key), record.document, f"stage key {record.key[:12]}")
        second = self._plan()  # what was read before is no longer true of who reused something meanwhile
        sizes = self._check_share(second)
        done = replace(
            second,
            releases=first.releases,
            records=first.records,
            runs=first.runs,
        )
        report = _report(self._deployment, self._store, done, sizes, self._now)
        self._remove_artifacts(second)
        self._remove_rest(second)
        return report.model_copy(update={"deleted": True, "skipped": tuple(self._skipped)})

    def _plan(self) -> RetentionPlan:
        return plan_retention(read_state(self._store, self._deployment), self._deployment.retention, self._now)

    def _check_share(self, plan: RetentionPlan) -> Sizes:
        """Refuse to take most of the store; returns the artifacts' sizes."""
        sizes = _sizes(self._store, plan)
        refused = refusal(taken(plan, sizes), self._deployment.retention.max_deleted_share)
        if refused and not self._force:
            raise TooMuchToRemove(refused, where=self._store.uri, hint=FORCE)
        return sizes

    def _remove_release(self, release: ReleaseState) -> None:
        """The record first; a release that was resolved again since, or is while its documents go, stays."""
        record = f"releases/{release.release_id}/release.json"
        if self._revision(record) != release.revision:
            self._skipped.append(f"release {release.release_id}, which came into use meanwhile")
            return
        self._store.delete_document(record)
        files = [f"releases/{release.release_id}/{name}" for name in _REPORT_FILES]
        for name in (*files, *release.documents):  # a listing finds the documents again, not the files
            if self._revision(record) is not None:
                self._skipped.append(f"release {release.release_id}, which came into use meanwhile")
                return
            self._store.delete_document(name)

    def _revision(self, name: str) -> str | None:
        document = self._store.read_document(name)
        return document.revision if document else None

    def _remove_leased(self, name: str, document: Document, what: str) -> None:
        """Remove a lease and its conclusion while holding it: others that want either wait, and find nothing."""
        epoch = lease_of(document, name).epoch + 1
        held = LeaseState.of_this_process(epoch=epoch, expires_at=time.time() + _RECORD_LEASE_SECONDS)
        try:
            self._store.write_document(name, held.model_dump(), document.revision)
        except Conflict:
            self._skipped.append(f"{what}, which came into use meanwhile")
            return
        self._store.delete_document(name)

    def _remove_artifacts(self, plan: RetentionPlan) -> None:
        for ref in plan.pardoned:
            pardon(self._store, ref)
        for ref in plan.condemned:
            condemn(self._store, ref, self._now)
        for ref, condemned in plan.removed.items():
            self._lease.check()
            if remove_condemned(self._store, ref, condemned):
                log.info("removed an artifact", artifact=str(ref))
            else:
                self._skipped.append(f"artifact {ref}, which came into use meanwhile")

    def _remove_rest(self, plan: RetentionPlan) -> None:
        for leftover in plan.leftovers:
            self._lease.check()
            remove_unfinished(self._store, leftover)
        for lease in plan.leases:
            self._store.delete_document(lease.name)
        for work in plan.work:
            self._remove_work(work)
        for data_set in plan.data_sets:
            self._remove_data_set(data_set)

    def _remove_data_set(self, data_set: KeptDataSet) -> None:
        """A fetched data set, unless somebody asked for it meanwhile."""
        try:
            if not remove_kept(data_set):
                self._skipped.append(f"data set {data_set.path}, which came into use meanwhile")
        except OSError as error:
            self._skipped.append(f"data set {data_set.path}, which cannot be removed: {error.strerror}")

    def _remove_work(self, work: WorkDirectory) -> None:
        """Remove work directories; what cannot be removed, such as a container's files of another user, is reported."""
        try:
            shutil.rmtree(work.path)
        except FileNotFoundError:
            return
        except OSError as error:
            self._skipped.append(f"work directory {work.path}, which cannot be removed: {error.strerror}")


def _report(
    deployment: Deployment,
    store: ArtifactStore,
    plan: RetentionPlan,
    sizes: Sizes,
    now: datetime,
) -> RetentionReport:
    """The report of a plan as a dry run."""
    found = tuple(going(plan, sizes, now, deployment.retention))
    total = {fate: sum(one.bytes or 0 for one in found if one.fate == fate) for fate in ("removed", "condemned")}
    return RetentionReport(
        deployment=deployment.name,
        store=store.uri,
        deleted=False,
        rules=deployment.retention,
        kept=tuple(Keeping(release_id=release_id, why=why) for release_id, why in sorted(plan.kept.items())),
        artifacts_kept=len(plan.reachable),
        going=found,
        bytes_removed=total["removed"],
        bytes_condemned=total["condemned"],
        postponed=plan.postponed if plan.waiting else "",
    )


def _sizes(store: ArtifactStore, plan: RetentionPlan) -> Sizes:
    """The size in bytes of every artifact, None where it is not known; nothing is read if none is to go."""
    going = {*plan.condemned, *plan.waiting, *plan.removed}
    refs = tuple(going | plan.stored) if going else ()
    with ThreadPoolExecutor(_READERS) as pool:  # a remote store answers each question after a while
        return dict(zip(refs, pool.map(lambda ref: _size(store, ref), refs), strict=True))


def _size(store: ArtifactStore, ref: ArtifactRef) -> int | None:
    try:
        return store.manifest(ref).size
    except PipelineError:  # half-removed, or damaged: it goes all the same
        return None
