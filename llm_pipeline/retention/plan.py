"""What is kept and why, what goes and why, and whether that is too much: pure functions of the state of a store."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import PurePosixPath

from llm_pipeline.base.errors import Terminal
from llm_pipeline.base.quantities import byte_size
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.deployment import Retention
from llm_pipeline.hub.kept_data_sets import KeptDataSet
from llm_pipeline.release.claim import Claimant
from llm_pipeline.retention.state import (
    LeaseDocument,
    RecordState,
    ReleaseState,
    StoreState,
    WorkDirectory,
    is_release_id,
)
from llm_pipeline.store.artifact_store import Leftover
from llm_pipeline.store.pending_deletion import Condemned

FORCE = "look at the list of `llm-pipeline gc`; if it is right, run `llm-pipeline gc --delete --force`"
"""What to do about a refusal."""

_STAGE_KEY = re.compile(r"[0-9a-f]{64}")
_CANARY_LEASE = re.compile(r"canary-(?P<target>.+)")


@dataclass(frozen=True)
class RetentionPlan:
    """What a retention run would do.

    Attributes:
        kept: Releases that stay, with every reason.
        stored: All artifacts that there are.
        reachable: Artifacts that stay, with one reason.
        releases: Releases whose documents go.
        records: Stage records that go.
        condemned: Artifacts that nobody needs, found now.
        waiting: Artifacts that nobody needed before, and when they may be removed.
        removed: Artifacts that go now.
        pardoned: Artifacts whose condemnation is void.
        postponed: Why no artifact is removed now; empty when they are.
    """

    kept: Mapping[str, tuple[str, ...]]
    stored: frozenset[ArtifactRef]
    reachable: Mapping[ArtifactRef, str]
    releases: tuple[ReleaseState, ...]
    records: tuple[RecordState, ...]
    condemned: tuple[ArtifactRef, ...]
    waiting: Mapping[ArtifactRef, datetime]
    removed: Mapping[ArtifactRef, Condemned]
    pardoned: tuple[ArtifactRef, ...]
    leases: tuple[LeaseDocument, ...]
    leftovers: tuple[Leftover, ...]
    runs: tuple[str, ...]
    work: tuple[WorkDirectory, ...]
    data_sets: tuple[KeptDataSet, ...]
    postponed: str = ""


def plan_retention(state: StoreState, rules: Retention, now: datetime) -> RetentionPlan:
    """Decide about everything in a store."""
    return _Planner(state, rules, now).plan()


class _Planner:
    def __init__(self, state: StoreState, rules: Retention, now: datetime) -> None:
        self._state = state
        self._rules = rules
        self._now = now
        self._grace = timedelta(hours=rules.grace_hours)
        self._holders = [claim.holder for claim in state.claims if claim.holder and self._alive(claim.holder)]
        self._waiting = [one for claim in state.claims for one in claim.waiting if self._alive(one)]
        self._newest = _newest(state.releases, rules.keep_releases)
        self._running = {work.release_id for work in state.work if work.running}
        self._held = {record.key for record in state.records if record.held}
        self._works_somewhere = bool(self._held) or any(  # a lease does not say for which release it is held
            lease.held and _CANARY_LEASE.fullmatch(PurePosixPath(lease.name).stem) for lease in state.leases
        )

    def plan(self) -> RetentionPlan:
        state = self._state
        kept = {release.release_id: reasons for release in state.releases if (reasons := tuple(self._why(release)))}
        releases = [release for release in state.releases if release.release_id in kept]
        gone = {release.release_id for release in state.releases} - kept.keys()
        keys = {key for release in releases for key in release.keys}
        records = [record for record in state.records if record.key in keys or self._record_stays(record)]
        useful_keys = {record.key for record in records}
        reachable = dict(self._reachable(releases, records))
        condemned = state.condemned
        stored = {artifact.ref for artifact in state.artifacts}
        useless = stored - reachable.keys()
        begun = {ref: one for ref, one in condemned.items() if one.condemnation.removing and ref not in reachable}
        waiting = {ref: condemned[ref].condemnation.since + self._grace for ref in useless & condemned.keys()}
        postponed = self._postponed()
        due = {ref: condemned[ref] for ref, when in waiting.items() if when <= self._now and not postponed} | begun
        return RetentionPlan(
            kept=kept,
            stored=frozenset(stored),
            reachable=reachable,
            releases=tuple(release for release in state.releases if release.release_id in gone),
            records=tuple(record for record in state.records if record.key not in useful_keys),
            condemned=_sorted(useless - condemned.keys()),
            waiting={ref: when for ref, when in waiting.items() if ref not in due},
            removed=due,
            pardoned=_sorted(condemned.keys() - useless - begun.keys()),
            leases=tuple(self._leases(releases)),
            leftovers=state.leftovers,
            runs=tuple(sorted(name for name, release in state.runs.items() if release in gone)),
            work=tuple(work for work in state.work if self._work_goes(work, kept)),
            data_sets=tuple(one for one in state.data_sets if self._now - one.used_at > self._data_sets_stay()),
            postponed=postponed,
        )

    def _alive(self, claimant: Claimant) -> bool:
        return self._now - claimant.renewed_at <= timedelta(hours=claimant.stale_after_hours)

    def _why(self, release: ReleaseState) -> Iterator[str]:
        """Every reason to keep a release; none means that it goes."""
        for reference in self._state.pointers:
            if reference.pointer.release_id == release.release_id:
                yield f"{reference.name} of {reference.model_id} on {reference.target}"
        yield from self._on_its_way(release)
        if release.revision is None:
            return
        if release.resolved_at is None or release.active_at is None:
            yield "its record cannot be understood"
            return
        if self._now - release.active_at <= self._grace:
            yield f"active in the last {self._rules.grace_hours:g} hours"
        if release.release_id in self._newest:
            yield f"one of the newest {self._rules.keep_releases} of {release.config}"
        if self._now - release.resolved_at <= timedelta(days=self._rules.keep_days):
            yield f"resolved in the last {self._rules.keep_days:g} days"

    def _on_its_way(self, release: ReleaseState) -> Iterator[str]:
        for claim in (*self._holders, *self._waiting):
            if claim.release_id == release.release_id or (not claim.release_id and claim.release == release.config):
                yield f"running: {claim.party}"
        for target in release.open_canaries:
            yield f"its canary on {target} is not finished"
        if release.release_id in self._running:
            yield "a stage of it runs on this machine"
        if self._held & release.keys:
            yield "a stage of it is computed again"
        elif release.revision is not None and not release.ended and self._works_somewhere:
            yield "its run has not ended, and work goes on somewhere"

    def _record_stays(self, record: RecordState) -> bool:
        return record.held or (record.ended_at is not None and self._now - record.ended_at <= self._grace)

    def _reachable(self, releases: list[ReleaseState], records: list[RecordState]) -> Iterator[tuple[ArtifactRef, str]]:
        """Later reasons win, so the strongest come last."""
        for artifact in self._state.artifacts:
            if self._now - artifact.published_at <= self._grace:
                yield artifact.ref, f"published in the last {self._rules.grace_hours:g} hours"
        for record in records:
            yield from ((ref, f"result of stage key {record.key[:12]}") for ref in record.artifacts)
        for release in releases:
            yield from ((ref, f"release {release.release_id}") for ref in release.artifacts)
        for reference in self._state.pointers:
            yield reference.pointer.repository, str(reference)

    def _postponed(self) -> str:
        """A release that has no name yet is about to use artifacts that nothing names."""
        nameless = [claim for claim in self._holders if not claim.release_id]
        return f"{nameless[0]} is about to be resolved" if nameless else ""

    def _leases(self, releases: list[ReleaseState]) -> Iterator[LeaseDocument]:
        """A target's canary lease counts its epochs; it goes when nothing is left of the target."""
        targets = {target for release in releases for target in release.targets} | self._state.places
        targets |= {reference.target for reference in self._state.pointers}
        for lease in self._state.leases:
            stem = PurePosixPath(lease.name).stem
            canary = _CANARY_LEASE.fullmatch(stem)
            gone = canary["target"] not in targets if canary else _STAGE_KEY.fullmatch(stem) is not None
            if gone and not lease.held:
                yield lease

    def _work_goes(self, work: WorkDirectory, kept: Mapping[str, tuple[str, ...]]) -> bool:
        old = self._now - work.changed_at > self._grace
        return is_release_id(work.release_id) and work.release_id not in kept and not work.running and old

    def _data_sets_stay(self) -> timedelta:
        """As long as a release that nothing else keeps; what a release has read is an artifact of its own."""
        return max(timedelta(days=self._rules.keep_days), self._grace)


def _newest(releases: tuple[ReleaseState, ...], count: int) -> set[str]:
    """The newest releases of each config."""
    by_config: dict[str, list[tuple[datetime, str]]] = {}
    for release in releases:
        if release.resolved_at is not None:
            by_config.setdefault(release.config, []).append((release.resolved_at, release.release_id))
    return {release_id for resolved in by_config.values() for _, release_id in sorted(resolved)[-count:]}


def _sorted(refs: set[ArtifactRef]) -> tuple[ArtifactRef, ...]:
    return tuple(sorted(refs, key=lambda ref: (ref.kind, ref.digest)))


class TooMuchToRemove(Terminal):
    """A run would take more of the store than the deployment lets it."""


@dataclass(frozen=True)
class Taken:
    """How much of a store nobody needs: what goes now, and what is condemned and goes later."""

    artifacts: int
    of_artifacts: int
    bytes: int
    of_bytes: int

    @property
    def share(self) -> float:
        """The larger one of both shares, 0 to 1."""
        return max(self.artifacts / max(1, self.of_artifacts), self.bytes / max(1, self.of_bytes))

    def __str__(self) -> str:
        size = f"{byte_size(self.bytes)} of {byte_size(self.of_bytes)}"
        return f"{self.artifacts} of the store's {self.of_artifacts} artifacts ({size})"


def taken(plan: RetentionPlan, sizes: Mapping[ArtifactRef, int | None]) -> Taken:
    """How much of a store a plan takes."""
    going = plan.stored & {*plan.condemned, *plan.waiting, *plan.removed}
    return Taken(
        artifacts=len(going),
        of_artifacts=len(plan.stored),
        bytes=sum(sizes.get(ref) or 0 for ref in going),
        of_bytes=sum(sizes.get(ref) or 0 for ref in plan.stored),
    )


def refusal(found: Taken, limit: float) -> str:
    """Why a run does not remove anything, and what to do about it; empty when it may."""
    if found.share <= limit:
        return ""
    return f"nobody needs {found}: more than the {limit:.0%} that a run may take (retention.max_deleted_share)"
