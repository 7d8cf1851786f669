"""Writes down what happened, and sends each event once on each channel: how far each got is a document in the store.

Whoever tells an event writes that down first, by compare-and-swap, so several senders side by side (a step's task, the
guard, a local run) tell nothing twice. An event that is not taken is tried again for a day.
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

PAUSE_SECONDS = 60.0
"""After an event that a channel did not take."""

STALE_SECONDS = 24 * 3600.0
"""Older events are no longer sent."""

log = get_logger(__name__)


class DeliveryState(Frozen):
    """What one channel has been sent.

    Attributes:
        through: Number of the last event of the stream that needs no telling any more.
        not_before: When the next one may be tried again, in seconds since 1970.
    """

    through: int = 0
    not_before: float = 0.0


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
        told, sent = self._load(), 0
        if told.not_before > time.time():
            return 0
        through = told.through
        try:
            for event in read(self._store, told.through):
                through = event.number
                if not self._wants(event):
                    continue
                told = self._save(DeliveryState(through=through))  # before it is sent: of several senders one goes on
                try:
                    if isinstance(self._channel, Recorder):
                        self._channel.record(event, self._store)
                    else:
                        self._channel.send(message_of(event))
                except NotSent as error:
                    self._log("notification not sent yet", event, error)
                    self._save(DeliveryState(through=through - 1, not_before=time.time() + PAUSE_SECONDS))
                    return sent
                except Refused as error:
                    self._log("notification not sent", event, error)
                    continue
                sent += 1
            if through > told.through:
                self._save(DeliveryState(through=through))
        except Conflict:
            log.info("another process is sending it", channel=self._channel_name)
        return sent

    def _log(self, what: str, event: Event, error: NotSent | Refused) -> None:
        log.warning(what, channel=self._channel_name, about=event.kind, reason=str(error))

    def _wants(self, event: Event) -> bool:
        fresh = time.time() - event.at.timestamp() <= STALE_SECONDS
        ours = event.deployment == self._deployment
        return fresh and ours and event.kind in self._kinds and event.severity in self._severities

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
