"""Sends each event of a canary once on each channel: what was sent is a document in the store.

Whoever tells events claims the channel first, by compare-and-swap, and writes down each one that was taken, so several
senders side by side (a step's task, the guard, a local run) tell nothing twice. One that dies between sending and
writing it down leaves that one event to be told again by the next, once its claim has run out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from llm_pipeline.base.errors import PipelineError, places_of
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.events import CanaryEvent
from llm_pipeline.canary.record import current_canary, read_events
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.notifications import Notifications
from llm_pipeline.notifications.channel import Channel, ConnectionReader, NotSent, Refused, channels
from llm_pipeline.notifications.message import kind_of, message_of
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
        through: Number of the last event that needs no telling any more.
        attempts: How often the one after it was tried in vain.
        not_before: When it may be tried again.
        claimed_until: Somebody is sending until then.
    """

    through: int = 0
    attempts: int = 0
    not_before: float = 0.0
    claimed_until: float = 0.0


def notify(
    store: ArtifactStore, config: Notifications, connections: ConnectionReader, release_id: str, target: str
) -> int:
    """Send a canary's new notifications; returns how many were accepted. Never raises: errors are logged.

    Args:
        store: Where the canary's record is.
        config: Who is to be told.
        connections: Where secrets are, besides the environment; channels whose secret is not had are left to others.
        release_id: The release on trial.
        target: The target's name.
    """
    try:
        found = tuple(channels(config, connections))
        events = read_events(store, release_id, target) if found else ()
        return sum(_Outbox(store, name, one, release_id, target).tell(events, config.events) for name, one in found)
    except Exception as error:  # noqa: BLE001 - people who are not told must not stop a canary
        _log_untold(error, "the canary's notifications could not be sent", release_id)
        return 0


def notify_of_targets(
    store: ArtifactStore, deployment: Deployment, connections: ConnectionReader, targets: Iterable[str] | None = None
) -> int:
    """Send new notifications about the latest canary of each target; see `notify`.

    Args:
        store: The deployment's.
        deployment: Who is to be told.
        connections: Where secrets are, besides the environment.
        targets: Names of targets; None for all of the deployment.
    """
    config = deployment.notifications
    if not config.wanted:
        return 0
    try:
        on_trial = {target: current_canary(store, target) for target in targets or deployment.places}
    except Exception as error:  # noqa: BLE001 - see `notify`
        _log_untold(error, "notifications of canaries could not be sent")
        return 0
    return sum(notify(store, config, connections, release, target) for target, release in on_trial.items() if release)


def _log_untold(error: Exception, event: str, release_id: str = "-") -> None:
    """Its text stays out of the log: it may hold where people are reached."""
    raised_at = "-" if isinstance(error, PipelineError) else places_of(error)
    log.warning(event, release=release_id, reason=type(error).__name__, raised_at=raised_at)


class _Outbox:
    """One channel, and what it has been sent about one canary."""

    def __init__(self, store: ArtifactStore, name: str, channel: Channel, release_id: str, target: str) -> None:
        self._store = store
        self._channel_name = name
        self._channel = channel
        self._release_id = release_id
        self._target = target
        self._name = f"releases/{release_id}/told/{target}.{name}.json"
        self._revision: str | None = None

    def tell(self, events: Sequence[CanaryEvent], wanted: Iterable[str]) -> int:
        """Send what is new, oldest first, until one is not taken."""
        told, now = self._load(), time.time()
        new = [event for event in events if event.number > told.through]
        if not new or max(told.not_before, told.claimed_until) > now:
            return 0
        try:
            return self._tell(new, told, frozenset(wanted))
        except Conflict:
            log.info("another process is sending it", channel=self._channel_name)
            return 0

    def _tell(self, new: Sequence[CanaryEvent], told: DeliveryState, wanted: frozenset[str]) -> int:
        sent = 0
        for event in new:
            told = self._save(told.model_copy(update={"claimed_until": time.time() + CLAIM_SECONDS}))
            if kind_of(event) in wanted and time.time() - event.at <= STALE_SECONDS:
                try:
                    self._channel.send(message_of(event, release_id=self._release_id, target=self._target))
                except (NotSent, Refused) as error:
                    told = self._after_failure(error, event, told)
                    if told.through < event.number:
                        break
                    continue
                sent += 1
            told = DeliveryState(through=event.number)
        self._save(told.model_copy(update={"claimed_until": 0.0}))
        return sent

    def _after_failure(self, error: NotSent | Refused, event: CanaryEvent, told: DeliveryState) -> DeliveryState:
        """Later again, or never: an event that is not taken for long holds up those after it no longer."""
        attempts = told.attempts + 1
        gives_up = isinstance(error, Refused) or attempts >= MOST_ATTEMPTS
        log.warning(
            "notification not sent" if gives_up else "notification not sent yet",
            channel=self._channel_name, about=event.kind.value, attempt=attempts, reason=str(error),
        )  # fmt: skip
        if gives_up:
            return DeliveryState(through=event.number)
        pause = min(FIRST_PAUSE_SECONDS * 2 ** (attempts - 1), LONGEST_PAUSE_SECONDS)
        return told.model_copy(update={"attempts": attempts, "not_before": time.time() + pause})

    def _load(self) -> DeliveryState:
        document = self._store.read_document(self._name)
        self._revision = document.revision if document else None
        return understood(DeliveryState, document.value, self._name) if document else DeliveryState()

    def _save(self, told: DeliveryState) -> DeliveryState:
        self._revision = self._store.write_document(self._name, told.model_dump(), self._revision)
        return told
