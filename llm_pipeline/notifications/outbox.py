"""Writes down what happened, and sends each event once on each channel: how far each got is a document in the store.

Whoever tells events claims the channel first, by compare-and-swap, and writes down each one that was taken, so several
senders side by side (a step's task, the guard, a local run) tell nothing twice. One that dies between sending and
writing it down leaves that one event to be told again by the next, once its claim has run out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from llm_pipeline.base.errors import IntegrityError, PipelineError, places_of
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.record import current_canary, read_events
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.notifications import EVERY_KIND, FOR_PEOPLE, SEVERITIES
from llm_pipeline.notifications.channel import Channel, ConnectionReader, NotSent, Recorder, Refused, channels
from llm_pipeline.notifications.event import Event, Origin
from llm_pipeline.notifications.happened import of_canary
from llm_pipeline.notifications.message import message_of
from llm_pipeline.notifications.stream import append, read
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict
from llm_pipeline.store.documents import understood

MOST_ATTEMPTS = 8
CLAIM_SECONDS = 60.0
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 600.0
STALE_SECONDS = 24 * 3600.0
"""Older events are no longer sent."""

log = get_logger(__name__)


class DeliveryState(Frozen):
    """What one channel has been sent. Times are seconds since 1970.

    Attributes:
        through: Number of the last event of the stream that needs no telling any more.
        attempts: How often the one after it was tried, in vain or without a word of what became of it.
        not_before: When it may be tried again.
        claimed_until: Somebody is sending until then.
    """

    through: int = 0
    attempts: int = 0
    not_before: float = 0.0
    claimed_until: float = 0.0


class _WrittenDown(Frozen):
    """Number of the last event of a canary that is in the stream."""

    through: int = 0


def tell(
    store: ArtifactStore,
    deployment: Deployment,
    connections: ConnectionReader,
    *,
    events: Sequence[Event] = (),
    canaries: Mapping[str, str] | None = None,
    link: str = "",
) -> int:
    """Write events down and send what the deployment's channels were not sent yet.

    Never raises, for people who are not told must not stop a release: errors are logged.

    Args:
        store: The deployment's.
        deployment: Who is to be told.
        connections: Where secrets are, besides the environment; channels whose secret is not had are left to others.
        events: What happened.
        canaries: Places whose canaries' new events are written down, too, with the release on trial; empty for the one
            that is, or was last.
        link: A page about the canaries' release.

    Returns:
        How many messages were accepted.
    """
    with _contained("writing down what happened"):
        append(store, events)
    for place, release_id in (canaries or {}).items():
        with _contained(f"writing down the canary of {place}"):
            _write_down(store, deployment, place, release_id, link)
    sent = 0
    with _contained("opening the channels"):
        for name, channel in channels(deployment.notifications, connections):
            with _contained(f"sending by {name}"):
                sent += _Outbox(store, deployment, name, channel).send()
    return sent


@contextmanager
def _contained(what: str) -> Iterator[None]:
    """End the block at an exception, and only the block: a broken channel must not keep the others from telling."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - see `tell`; its text may hold where people are reached
        raised_at = "-" if isinstance(error, PipelineError) else places_of(error)
        log.warning(f"{what} failed, people may not be told", reason=type(error).__name__, raised_at=raised_at)


def _write_down(store: ArtifactStore, deployment: Deployment, place: str, release_id: str, link: str) -> None:
    """Append a canary's new events to the stream."""
    release_id = release_id or current_canary(store, place) or ""
    if not release_id:
        return
    name = f"releases/{release_id}/told/{place}.json"
    document = store.read_document(name)
    known = understood(_WrittenDown, document.value, name) if document else _WrittenDown()
    new = read_events(store, release_id, place, after=known.through)
    if not new:
        return
    origin = Origin(deployment.name, release_id, link)
    append(store, [of_canary(origin, event, place) for event in new])
    try:
        written = _WrittenDown(through=new[-1].number).model_dump()
        store.write_document(name, written, document.revision if document else None)
    except Conflict:
        log.debug("another process wrote the canary's events down", place=place)


class _Outbox:
    """One channel of a deployment, and how far it got in the stream."""

    def __init__(self, store: ArtifactStore, deployment: Deployment, name: str, channel: Channel | Recorder) -> None:
        settings = deployment.notifications[name]
        self._store = store
        self._deployment = deployment.name
        self._channel_name = name
        self._channel = channel
        self._kinds = EVERY_KIND if settings.keeps_record else FOR_PEOPLE
        self._severities = SEVERITIES[SEVERITIES.index(settings.at_least) :]
        self._name = f"told/{deployment.name}.{name}.json"
        self._revision: str | None = None

    def send(self) -> int:
        """Send what is new, oldest first, until one is not taken; returns how many were."""
        told, now = self._load(), time.time()
        if max(told.not_before, told.claimed_until) > now:
            return 0
        new = list(read(self._store, told.through))
        try:
            return self._send(new, told) if new else 0
        except Conflict:
            log.info("another process is sending it", channel=self._channel_name)
            return 0

    def _send(self, new: Sequence[Event], told: DeliveryState) -> int:
        sent = 0
        for event in new:
            wanted = self._wants(event)
            given_up = wanted and told.attempts >= MOST_ATTEMPTS
            if given_up:
                log.warning(
                    "notification not sent",
                    channel=self._channel_name, about=event.kind, attempt=told.attempts,
                    reason="each attempt broke or was killed",
                )  # fmt: skip
            if given_up or not wanted:
                told = DeliveryState(through=event.number, claimed_until=told.claimed_until)
                continue
            claimed = {"claimed_until": time.time() + CLAIM_SECONDS, "attempts": told.attempts + 1}
            told = self._save(told.model_copy(update=claimed))  # whatever becomes of it, it was tried
            try:
                if isinstance(self._channel, Recorder):
                    self._channel.record(event, self._store)
                else:
                    self._channel.send(message_of(event))
            except (NotSent, Refused) as error:
                told = self._after_failure(error, event, told)
                if told.through < event.number:
                    break
                continue
            sent += 1
            told = DeliveryState(through=event.number)
        self._save(told.model_copy(update={"claimed_until": 0.0}))
        return sent

    def _wants(self, event: Event) -> bool:
        fresh = time.time() - event.at.timestamp() <= STALE_SECONDS
        ours = event.deployment == self._deployment
        return fresh and ours and event.kind in self._kinds and event.severity in self._severities

    def _after_failure(self, error: NotSent | Refused, event: Event, told: DeliveryState) -> DeliveryState:
        """Later again, or never: an event that is not taken for long holds up those after it no longer."""
        gives_up = isinstance(error, Refused) or told.attempts >= MOST_ATTEMPTS
        log.warning(
            "notification not sent" if gives_up else "notification not sent yet",
            channel=self._channel_name, about=event.kind, attempt=told.attempts, reason=str(error),
        )  # fmt: skip
        if gives_up:
            return DeliveryState(through=event.number)
        pause = min(FIRST_PAUSE_SECONDS * 2 ** (told.attempts - 1), LONGEST_PAUSE_SECONDS)
        return told.model_copy(update={"not_before": time.time() + pause})

    def _load(self) -> DeliveryState:
        """How far it got. Where that is damaged, what is not stale is sent again: rather twice than never."""
        try:
            document = self._store.read_document(self._name)
            self._revision = document.revision if document else None
            return understood(DeliveryState, document.value, self._name) if document else DeliveryState()
        except IntegrityError as error:
            log.warning("how far a channel got is not known", channel=self._channel_name, reason=str(error))
            self._store.delete_document(self._name)
            self._revision = None
            return DeliveryState()

    def _save(self, told: DeliveryState) -> DeliveryState:
        self._revision = self._store.write_document(self._name, told.model_dump(), self._revision)
        return told
