"""When a new commit on the hub becomes a release: the policy of `watch:`, without network, clock or Airflow.

    state, decision = decide(watch, state, Head(commit=..., content=...), now)
    if decision.start: ...  # start a run of exactly decision.start.commit

What counts is content, not history: the files that a release fetches. A commit that changes none of them, or that
brings the content of the last release back, starts nothing. A commit is released once: whichever run took it up first
has its claim, and a branch that is forced back to it starts nothing.

The first look at a revision is where the watch starts from: it releases nothing, because nothing is *new* yet. If
runs of this release config released a commit before, that commit is where it starts from, so a lost state misses
nothing.

A start is recorded before it is made, and stays pending until a run claims its commit. In between it can be lost (a
killed triggerer, an event while the DAG is paused), so an unclaimed start is repeated, at growing intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from pydantic import AwareDatetime

from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.release import Watch

DAY = timedelta(hours=24)
FIRST_PATIENCE = timedelta(minutes=2)
LONGEST_PATIENCE = timedelta(hours=1)
LONGEST_BACK_OFF_SECONDS = 3600.0
_FIRST_LOOK = "first look: "
_NAMES_SHOWN = 6
_SHORTEST_LOOK_SECONDS = 1.0
_LONGEST_WORDS = 600


class Reference(ConfigModel):
    """A commit and the digest of its files that count; the digest is empty when the commit has no usable files."""

    commit: str
    content: str


class PendingStart(Reference):
    """A start that no run has claimed yet: when it was made first and last, and how often."""

    first_at: AwareDatetime
    last_at: AwareDatetime
    times: int = 1


class WatchState(ConfigModel):
    """What a watch remembers; small, and JSON.

    Attributes:
        reference: What is released, or where the watch started from.
        head: The commit that the revision named last.
        since: When it named that commit first.
        firing: The start that waits for its run.
        starts: When releases were started in the last 24 hours, the oldest first.
        failures: Looks at the hub that failed, since the last one that did not.
        words: The last decision, for people.
    """

    reference: Reference | None = None
    head: str = ""
    since: AwareDatetime | None = None
    firing: PendingStart | None = None
    starts: tuple[AwareDatetime, ...] = ()
    failures: int = 0
    words: str = ""


class Start(ConfigModel):
    """A release to start, and the payload of the event that starts it.

    Attributes:
        commit: The commit to release, and no other.
        content: Digest of its files that count.
        revision: The watched revision that named it.
        reason: Why, for people.
        seen_at: When the revision named it first.
    """

    kind: Literal["release-watch"] = "release-watch"
    commit: str
    content: str
    revision: str
    reason: str
    seen_at: AwareDatetime


@dataclass(frozen=True)
class Head:
    """What the watched revision names now.

    Attributes:
        content: Digest of the files that count; empty when the commit cannot be released.
        counted: Files that count, or are gone, and differ from the reference's.
        unusable: Why the commit cannot be released; empty when it can.
        claims: Which run released a commit: of this commit and of the one being started, as far as claimed.
        busy: Whether a run of the DAG is queued or running: it may be the one that claims the start.
    """

    commit: str
    revision: str = "main"
    content: str = ""
    counted: tuple[str, ...] = ()
    unusable: str = ""
    claims: Mapping[str, str] = field(default_factory=dict)
    busy: bool = False


@dataclass(frozen=True)
class Trouble:
    """The hub or the store did not answer.

    Attributes:
        retry_after_seconds: How long we are asked to wait.
    """

    message: str
    retry_after_seconds: float | None = None


@dataclass(frozen=True)
class WatchDecision:
    """What to do after one look at the hub.

    Attributes:
        words: The decision, for people; the same as long as nothing changes.
        look_again_seconds: When to look at the hub again.
        start: The release to start, or None.
        trouble: The hub or the store did not answer, or what they have cannot be released.
    """

    words: str
    look_again_seconds: float
    start: Start | None = None
    trouble: bool = False


def decide(watch: Watch, state: WatchState, seen: Head | Trouble, now: datetime) -> tuple[WatchState, WatchDecision]:
    """What a look at the hub leads to.

    The state must be kept before the decision is acted on.

    Args:
        watch: The policy.
        state: What was remembered of the look before.
        seen: What the hub says now.
        now: The time, with its zone; never earlier than in the look before.
    """
    if isinstance(seen, Trouble):
        state, decision = _troubled(watch, state, seen)
    else:
        state, decision = _looked(watch, _claimed(_moved(state, seen, now), seen), seen, now)
    return state.model_copy(update={"words": decision.words[:_LONGEST_WORDS]}), decision


def _troubled(watch: Watch, state: WatchState, seen: Trouble) -> tuple[WatchState, WatchDecision]:
    poll = watch.poll_minutes * 60
    wait = min(poll * 2 ** min(state.failures, 16), max(poll, LONGEST_BACK_OFF_SECONDS))
    wait = max(wait, min(seen.retry_after_seconds or 0.0, DAY.total_seconds()))
    failed = state.model_copy(update={"failures": state.failures + 1})
    return failed, WatchDecision(f"cannot look: {seen.message}", wait, trouble=True)


def _moved(state: WatchState, seen: Head, now: datetime) -> WatchState:
    """The state with the head of now; another commit than before begins a new quiet period."""
    changed = seen.commit != state.head
    starts = tuple(at for at in state.starts if now - at < DAY)
    since = now if changed else state.since
    return state.model_copy(update={"head": seen.commit, "since": since, "failures": 0, "starts": starts})


def _claimed(state: WatchState, seen: Head) -> WatchState:
    """The state after runs claimed what was started, or what the revision names."""
    if state.firing is not None and state.firing.commit in seen.claims:
        released = Reference(commit=state.firing.commit, content=state.firing.content)
        state = state.model_copy(update={"reference": released, "firing": None})
    if seen.commit in seen.claims and (state.reference is None or state.reference.commit != seen.commit):
        released = Reference(commit=seen.commit, content=seen.content)
        state = state.model_copy(update={"reference": released})
    return state


def _looked(watch: Watch, state: WatchState, seen: Head, now: datetime) -> tuple[WatchState, WatchDecision]:
    poll = watch.poll_minutes * 60
    commit, reference, firing = _short(seen.commit), state.reference, state.firing
    if reference is None:
        words = f"{_FIRST_LOOK}{commit} is where the watch starts from; trigger the DAG to release it"
        state = state.model_copy(update={"reference": Reference(commit=seen.commit, content=seen.content)})
        return state, WatchDecision(words, poll)
    if run := seen.claims.get(seen.commit):
        return state, WatchDecision(f"nothing new: {commit} was released by run {run}", poll)
    if seen.commit == reference.commit:
        told_first = state.words.startswith(_FIRST_LOOK)  # and until something happens
        return state, WatchDecision(state.words if told_first else f"nothing new since {commit}", poll)
    if seen.unusable:
        return state, WatchDecision(f"{commit} cannot be released: {seen.unusable}", poll, trouble=True)
    if seen.content == reference.content:
        return state, WatchDecision(f"{commit} changes nothing that counts since {_short(reference.commit)}", poll)
    if firing is not None and seen.content == firing.content:
        return _waiting(watch, state, firing, seen, now)
    quiet_until = (state.since or now) + timedelta(minutes=watch.quiet_minutes)
    if now < quiet_until:
        words = f"{commit} waits until {_time(quiet_until)} for further commits: {_named(seen.counted)}"
        return state, WatchDecision(words, _until(quiet_until, now, watch))
    if len(state.starts) >= watch.rebuilds_per_day:
        free_at = state.starts[-watch.rebuilds_per_day] + DAY
        words = f"{commit} waits until {_time(free_at)}: {len(state.starts)} releases were started in 24 hours"
        return state, WatchDecision(words, _until(free_at, now, watch))
    firing = PendingStart(commit=seen.commit, content=seen.content, first_at=now, last_at=now)
    words = f"{commit} starts a release: {_named(seen.counted)}"
    return _started(watch, state.model_copy(update={"starts": (*state.starts, now)}), firing, seen, words)


def _waiting(
    watch: Watch, state: WatchState, firing: PendingStart, seen: Head, now: datetime
) -> tuple[WatchState, WatchDecision]:
    """A start that no run has claimed yet: made again once its patience is over and no run can be on its way to it."""
    due = firing.last_at + min(FIRST_PATIENCE * 2 ** min(firing.times - 1, 16), LONGEST_PATIENCE)
    words = f"{_short(firing.commit)} was started at {_time(firing.first_at)}; its run has not begun yet"
    if now < due or seen.busy:
        return state, WatchDecision(words, _until(max(due, now + FIRST_PATIENCE / 4), now, watch))
    again = firing.model_copy(update={"last_at": now, "times": firing.times + 1})
    starts = (*[at for at in state.starts if at != firing.last_at], now)
    words = f"{words} (is the DAG paused? started again for the {again.times}. time)"
    return _started(watch, state.model_copy(update={"starts": starts}), again, seen, words)


def _started(
    watch: Watch, state: WatchState, firing: PendingStart, seen: Head, words: str
) -> tuple[WatchState, WatchDecision]:
    """What making a start leads to, for the first time or again; it was made at its `last_at`."""
    start = Start(
        commit=firing.commit,
        content=firing.content,
        revision=seen.revision,
        reason=words,
        seen_at=state.since or firing.first_at,
    )
    now = firing.last_at
    decision = WatchDecision(words, _until(now + FIRST_PATIENCE, now, watch), start)
    return state.model_copy(update={"firing": firing}), decision


def _until(then: datetime, now: datetime, watch: Watch) -> float:
    """Seconds until then, but no longer than to the next poll."""
    return min(max((then - now).total_seconds(), _SHORTEST_LOOK_SECONDS), watch.poll_minutes * 60)


def _short(commit: str) -> str:
    return commit[:12]


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M UTC")


def _named(files: tuple[str, ...]) -> str:
    if not files:
        return "the previous commit is gone from the hub, so its files cannot be listed"
    shown = ", ".join(sorted(files)[:_NAMES_SHOWN])
    return shown if len(files) <= _NAMES_SHOWN else f"{shown} and {len(files) - _NAMES_SHOWN} more"
