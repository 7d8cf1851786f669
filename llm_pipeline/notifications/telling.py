"""Sends events to people by Apprise, at once; a canary's events once, whoever sees them first."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from llm_pipeline.base.errors import PipelineError, Terminal, Unsupported, places_of
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.record import read_events
from llm_pipeline.config.deployment import SEVERITIES, Channel, Deployment, Severity
from llm_pipeline.notifications.event import Event, Origin, of_canary, plain
from llm_pipeline.notifications.mlflow_run import keep_in_mlflow
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.store.artifact_store import Conflict
from llm_pipeline.store.place_state import read_place

log = get_logger(__name__)

_TYPES: dict[Severity, str] = {"info": "info", "warning": "warning", "critical": "failure"}


class NotSent(Terminal):
    """A channel cannot send. No error, log or repr of it shows any part of a URL."""


class _Told(Frozen):
    """Number of the last event of a canary that people were told."""

    through: int = 0


def tell(deployment: Deployment, events: Iterable[Event]) -> None:
    """Send events on the deployment's channels.

    Never raises, for people who are not told must not stop a release: errors are logged, without their texts. Channels
    whose variable is not set here are left to others.
    """
    told = list(events)
    for name, channel in deployment.notifications.items():
        with contained(f"sending by {name}"):
            _send(channel, services_of(channel), told)


def tell_canary(deployment: Deployment, place: str, release_id: str = "", *, link: str = "") -> None:
    """Tell people the events of a place's canary that nobody has told yet; see `tell`.

    How far each channel was told is a document in the store, written before the events are sent: of several who look,
    one tells. Whoever has no secret of a channel leaves its events to the others.

    Args:
        deployment: Who is to be told, and the store that holds the canary's record.
        place: The place's name.
        release_id: The release on trial; that which is, or was last, by default.
        link: A page about the release.
    """
    for channel_name, channel in deployment.notifications.items():
        with contained(f"telling {channel_name} of the canary at {place}"):
            services, store = services_of(channel), open_store(deployment.store)
            on_trial = release_id or read_place(store, place).on_trial
            if not services or not on_trial:
                continue
            name = f"releases/{on_trial}/told/{place}.{channel_name}.json"
            known, revision = store.read_as(name, _Told)
            new = read_events(store, on_trial, place, after=known.through if known else 0)
            if not new:
                continue
            told = _Told(through=new[-1].number).model_dump()
            with contextlib.suppress(Conflict):  # another process tells them
                store.write_document(name, told, revision)
                origin = Origin(deployment.name, on_trial, link)
                _send(channel, services, [of_canary(origin, event, place) for event in new])


def keep_run(store: ArtifactStore, deployment: Deployment, release_id: str) -> None:
    """Keep a release that has its report as a run of MLflow, where the deployment names an experiment; see `tell`."""
    if deployment.mlflow_experiment:
        with contained("keeping the release in MLflow"):
            keep_in_mlflow(store, deployment.mlflow_experiment, release_id)


def _send(channel: Channel, services: Any, events: Iterable[Event]) -> None:
    """Send what matters enough.

    Raises:
        NotSent: A service did not take an event; the others were sent.
    """
    wanted = SEVERITIES[SEVERITIES.index(channel.at_least) :]
    sent = [  # as plain text: what others wrote is no markup
        services.notify(event.text, plain(event.title), _TYPES[event.severity], body_format="text")
        for event in events
        if services and event.severity in wanted
    ]
    if not all(sent):
        raise NotSent("a service did not take a message", hint="try its URL with the command `apprise`")


def check_channel(channel: Channel) -> str:
    """What `doctor` says of a channel, without a message sent.

    Raises:
        Unsupported: Apprise is not installed here.
        NotSent: A URL is wrong.
    """
    services = services_of(channel)
    return f"{len(services)} services of Apprise" if services else f"nothing is sent from here: no {channel.variable}"


def services_of(channel: Channel) -> Any:
    """Apprise with a channel's URLs; empty where these cannot be had here.

    Raises:
        Unsupported: Apprise is not installed here.
        NotSent: A URL is wrong.
    """
    urls = os.environ.get(channel.variable, "").split()
    if not urls:
        return ()
    try:
        import apprise
    except ImportError as error:
        raise Unsupported("Apprise is not installed in this interpreter", hint="pip install apprise") from error
    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)  # it may show the URLs,
    logging.getLogger("urllib3").setLevel(logging.INFO)  # and this one their paths
    services = apprise.Apprise()
    for number, url in enumerate(urls, start=1):
        if not services.add(url):
            raise NotSent(f"Apprise does not understand URL {number}", hint="try it with the command `apprise`")
    return services


@contextmanager
def contained(what: str) -> Iterator[None]:
    """End the block at an exception, and only the block: people who are not told must not stop a release."""
    try:
        yield
    except PipelineError as error:
        log.warning(f"{what} failed, people may not be told", reason=str(error))
    except Exception as error:  # noqa: BLE001 - its text may hold where people are reached
        log.warning(f"{what} failed, people may not be told", reason=type(error).__name__, raised_at=places_of(error))
