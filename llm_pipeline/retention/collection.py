"""Doing what the retention decided; the order and the reasons are in this package's documentation."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from llm_pipeline.config.deployment import Deployment
from llm_pipeline.errors import PipelineError
from llm_pipeline.logging import get_logger
from llm_pipeline.quantization.calibration_store import calibration_document
from llm_pipeline.retention.plan import RetentionPlan, plan_retention
from llm_pipeline.retention.report import Keeping, RetentionReport, going
from llm_pipeline.retention.state import ReleaseState, read_state
from llm_pipeline.runners.detached import process_start_ticks
from llm_pipeline.stages.contract import ArtifactRef
from llm_pipeline.stages.execute import record_name
from llm_pipeline.store import open_store
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict, Document
from llm_pipeline.store.condemned import RETENTION_LEASE, condemn, pardon, remove_condemned
from llm_pipeline.store.lease import Lease, LeaseState

_RECORD_LEASE_SECONDS = 60.0
_REPORT_FILES = ("report.html", "report.md")

log = get_logger(__name__)


def collect_garbage(deployment: Deployment, *, delete: bool, now: datetime | None = None) -> RetentionReport:
    """Find what nobody needs any more, and remove it if asked to.

    Args:
        deployment: Whose store, whose rules, and whose work directories on this machine.
        delete: False changes nothing.
        now: The time that ages are counted from; None for the present.

    Raises:
        LeaseHeld: Another run removes things at this moment.
        LeaseLost: Another one took over while this process was stalled; it goes on from there.
        IntegrityError: Something in the store cannot be understood, so it is not known what is in use.
        Transient: The store cannot be used now.
    """
    store, now = open_store(deployment.store), now or datetime.now(UTC)
    if not delete:
        plan = plan_retention(read_state(store, deployment), deployment.retention, now)
        return _report(deployment, store, plan, now, deleted=False)
    with Lease(store, RETENTION_LEASE) as lease:
        return _Collector(store, deployment, lease, now).run()


class _Collector:
    """One run that removes; notes what was used meanwhile and stays."""

    def __init__(self, store: ArtifactStore, deployment: Deployment, lease: Lease, now: datetime) -> None:
        self._store = store
        self._deployment = deployment
        self._lease = lease
        self._now = now
        self._skipped: list[str] = []

    def run(self) -> RetentionReport:
        first = self._plan()
        for name in first.runs:
            self._store.delete_document(name)
        for release in first.releases:
            self._lease.check()
            self._remove_release(release)
        for record in first.records:
            self._lease.check()
            self._remove_leased(record_name(record.key), record.document, f"stage key {record.key[:12]}")
        for calibration in first.calibrations:
            self._lease.check()
            name = calibration_document(calibration.key)
            self._remove_leased(name, calibration.document, f"calibration {calibration.key[:12]}")
        second = self._plan()  # what was read before is no longer true of who reused something meanwhile
        done = replace(
            second,
            releases=first.releases,
            records=first.records,
            calibrations=first.calibrations,
            runs=first.runs,
        )
        report = _report(self._deployment, self._store, done, self._now, deleted=True)
        self._remove_artifacts(second)
        self._remove_rest(second)
        return report.model_copy(update={"skipped": tuple(self._skipped)})

    def _plan(self) -> RetentionPlan:
        return plan_retention(read_state(self._store, self._deployment), self._deployment.retention, self._now)

    def _remove_release(self, release: ReleaseState) -> None:
        """The record first; a release that was resolved again since, or is while its documents go, stays."""
        record = f"releases/{release.release_id}/release.json"
        if self._revision(record) != release.revision:
            self._skipped.append(f"release {release.release_id}")
            return
        self._store.delete_document(record)
        files = [f"releases/{release.release_id}/{name}" for name in _REPORT_FILES]
        for name in (*files, *release.documents):  # a listing finds the documents again, not the files
            if self._revision(record) is not None:
                self._skipped.append(f"release {release.release_id}")
                return
            self._store.delete_document(name)

    def _revision(self, name: str) -> str | None:
        document = self._store.read_document(name)
        return document.revision if document else None

    def _remove_leased(self, name: str, document: Document, what: str) -> None:
        """Remove a lease and its conclusion, holding it: whoever wants to compute or reuse waits, and finds nothing."""
        pid = os.getpid()
        held = LeaseState(
            host=socket.gethostname(),
            pid=pid,
            start_ticks=process_start_ticks(pid) or 0,
            epoch=LeaseState.model_validate(document.value).epoch + 1,
            expires_at=time.time() + _RECORD_LEASE_SECONDS,
        )
        try:
            self._store.write_document(name, held.model_dump(), document.revision)
        except Conflict:
            self._skipped.append(what)
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
                self._skipped.append(f"artifact {ref}")

    def _remove_rest(self, plan: RetentionPlan) -> None:
        for leftover in plan.leftovers:
            self._lease.check()
            self._store.remove_leftover(leftover)
        for lease in plan.leases:
            self._store.delete_document(lease.name)
        for work in plan.work:
            shutil.rmtree(work.path, ignore_errors=True)


def _report(
    deployment: Deployment, store: ArtifactStore, plan: RetentionPlan, now: datetime, *, deleted: bool
) -> RetentionReport:
    found = tuple(going(plan, lambda ref: _size(store, ref), now, deployment.retention))
    sizes = {fate: sum(one.bytes or 0 for one in found if one.fate == fate) for fate in ("removed", "condemned")}
    return RetentionReport(
        deployment=deployment.name,
        store=store.uri,
        deleted=deleted,
        rules=deployment.retention,
        kept=_kept(plan.kept),
        artifacts_kept=len(plan.reachable),
        going=found,
        bytes_removed=sizes["removed"],
        bytes_condemned=sizes["condemned"],
        postponed=plan.postponed if plan.waiting else "",
    )


def _kept(kept: Mapping[str, tuple[str, ...]]) -> tuple[Keeping, ...]:
    return tuple(Keeping(release_id=release_id, why=why) for release_id, why in sorted(kept.items()))


def _size(store: ArtifactStore, ref: ArtifactRef) -> int | None:
    try:
        return store.manifest(ref).size
    except PipelineError:  # half-removed, or damaged: it goes all the same
        return None
