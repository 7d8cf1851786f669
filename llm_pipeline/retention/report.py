"""What a retention run did or would do, for people and for programs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Literal

from pydantic import Field

from llm_pipeline.base.quantities import byte_size
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.config.deployment import Retention
from llm_pipeline.inspection.table import aligned, readable_time
from llm_pipeline.retention.plan import FORCE, RetentionPlan
from llm_pipeline.retention.state import ReleaseState

What = Literal[
    "release",
    "stage record",
    "artifact",
    "lease",
    "leftover",
    "run of a removed release",
    "work directory",
    "data set",
]
Sizes = Mapping[ArtifactRef, int | None]

_DIGEST = re.compile(r"([0-9a-f]{12})[0-9a-f]{52}")


class Going(Frozen):
    """One thing that a retention run removes, now or later.

    Attributes:
        fate: `removed` in this run; `condemned`: removed by a later run unless it is of use again.
        bytes: None where that is not known.
        after: When it may be removed; None for now.
    """

    what: What
    name: str
    fate: Literal["removed", "condemned"]
    why: str
    bytes: int | None = None
    after: datetime | None = None


class Keeping(Frozen):
    """A release that stays, and why."""

    release_id: str
    why: tuple[str, ...]


class RetentionReport(Frozen):
    """What a retention run kept and removed, or would remove.

    Attributes:
        deleted: Whether it was done; else it is what would be done.
        artifacts_kept: How many artifacts stay.
        bytes_removed: What is removed, as far as sizes are known.
        bytes_condemned: What a later run removes.
        postponed: Why no artifact is removed now; empty when they are.
        refused: Why a run that deletes would remove nothing without being forced; empty when it would not need it.
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
    bytes_condemned: int
    postponed: str = ""
    refused: str = ""
    skipped: tuple[str, ...] = Field(default=())

    def lines(self) -> Iterator[str]:
        """The report as lines of text, with tables."""
        yield f"{'retention' if self.deleted else 'retention, dry run'}: {self.deployment}, {self.store}"
        yield from ("", f"kept{'' if self.kept else ': no release'}, with {self.artifacts_kept} artifacts")
        if self.kept:
            yield from aligned(("release", "because"), [(one.release_id, "; ".join(one.why)) for one in self.kept])
        yield from _table("removed" if self.deleted else "would be removed", self._that_goes("removed"))
        later = "no longer needed; removed by a later run if it still is not"
        yield from _table(later, self._that_goes("condemned"))
        yield ""
        if self.postponed:
            yield f"no artifact is removed now: {self.postponed}"
        yield from (f"stays: {name}" for name in self.skipped)
        yield self._summary()
        if self.refused:
            yield f"--delete would remove nothing: {self.refused}; {FORCE}"

    def _that_goes(self, fate: str) -> list[Going]:
        return [one for one in self.going if one.fate == fate]

    def _summary(self) -> str:
        removed, condemned = byte_size(self.bytes_removed), byte_size(self.bytes_condemned)
        if self.deleted:
            return f"{removed} freed; {condemned} may be freed later"
        return f"{removed} would be freed now, {condemned} later; nothing was changed: --delete does it"


def going(plan: RetentionPlan, sizes: Sizes, now: datetime, rules: Retention) -> Iterator[Going]:
    """All that goes by a plan, with sizes."""
    for release in plan.releases:
        yield Going(what="release", name=release.release_id, fate="removed", why=_why_release(release, rules))
    for record in plan.records:
        why = "no kept release uses it" if record.artifacts or record.ended_at else "it has no result"
        yield Going(what="stage record", name=record.key, fate="removed", why=why)
    yield from _artifacts(plan, sizes, now, rules)
    for leftover in plan.leftovers:
        why = f"left by an interrupted publication at {readable_time(leftover.changed_at)} UTC"
        yield Going(what="leftover", name=leftover.name, fate="removed", why=why, bytes=leftover.bytes)
    for lease in plan.leases:
        yield Going(what="lease", name=lease.name, fate="removed", why="the work it guarded is gone")
    for name in plan.runs:
        yield Going(what="run of a removed release", name=name, fate="removed", why="its release goes")
    for work in plan.work:
        yield Going(what="work directory", name=str(work.path), fate="removed", why="its release is not kept")
    for data_set in plan.data_sets:
        why = f"no release has asked for it since {readable_time(data_set.used_at)} UTC"
        yield Going(what="data set", name=str(data_set.path), fate="removed", why=why, bytes=data_set.bytes)


def _artifacts(plan: RetentionPlan, sizes: Sizes, now: datetime, rules: Retention) -> Iterator[Going]:
    for ref, condemned in plan.removed.items():
        why = f"not needed since {readable_time(condemned.condemnation.since)} UTC"
        yield Going(what="artifact", name=_name(ref), fate="removed", why=why, bytes=sizes.get(ref))
    later = dict.fromkeys(plan.condemned, now + timedelta(hours=rules.grace_hours))
    for ref, after in {**later, **plan.waiting}.items():
        why = f"no kept release, pointer or stage record names it; stays until {readable_time(after)} UTC"
        yield Going(what="artifact", name=_name(ref), fate="condemned", why=why, bytes=sizes.get(ref), after=after)


def _why_release(release: ReleaseState, rules: Retention) -> str:
    if release.resolved_at is None:
        return "its removal was interrupted"
    since = readable_time(release.resolved_at)
    return f"resolved {since} UTC, not among the newest {rules.keep_releases} of {release.config}, not in use"


def _name(ref: ArtifactRef) -> str:
    return f"{ref.kind}/{ref.digest}"


def _table(title: str, rows: list[Going]) -> list[str]:
    if not rows:
        return ["", f"{title}: nothing"]
    cells = [(one.what, _DIGEST.sub(r"\1", one.name), _size(one.bytes), one.why) for one in rows]
    return ["", title, *aligned(("what", "name", "size", "because"), cells, right=("size",))]


def _size(count: int | None) -> str:
    return "" if count is None else byte_size(count)
