"""What serves at the places of a deployment, and whether it is well: `llm-pipeline status`, and what `doctor` asks.

Pointers, router, servers and the guard's sign are looked at together, so that what does not fit is told. A server is
well when it generates a token; that its process runs tells nothing.

At the end: the last words of `llm-pipeline run`, and the command that asks what a place's users ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from llm_pipeline.artifacts.endpoint_description import EndpointDescription
from llm_pipeline.base.errors import ExitCode, IntegrityError, PipelineError
from llm_pipeline.base.records import Frozen
from llm_pipeline.base.text_table import labelled, readable_time
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.record import CanaryRecord, Phase, read_canary_record, standing_pause
from llm_pipeline.canary.router import ALL, RouterCondition, RouteState, SlotName, StartedRouter
from llm_pipeline.canary.slots import generates, slot_endpoint, slot_state, slots_of
from llm_pipeline.config.deployment import Deployment, TargetPlace
from llm_pipeline.config.server_place import OpenAiSlot, ServerPorts
from llm_pipeline.operations.served_place import (
    is_moving,
    is_recent,
    last_heard,
    last_pass,
    require_place_of,
    router_here,
)
from llm_pipeline.operations.switching import STAGING
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.serving.ports import loopback_endpoint
from llm_pipeline.serving.triton_server import find_server
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.place_state import PlaceState, Pointer, read_place, serving_at

ServerCondition = Literal["answers", "is running but gives no answer", "has ended", "stopped"]


class Health(StrEnum):
    """How a place is, from its users' point of view."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    DEAD = "dead"
    STOPPED = "stopped"
    EMPTY = "empty"
    ELSEWHERE = "elsewhere"


_HEALTH_WORDS: Mapping[Health, str] = {
    Health.HEALTHY: "users are served",
    Health.DEGRADED: "users are served, and something is wrong",
    Health.DEAD: "no server answers users",
    Health.STOPPED: "production was stopped; `llm-pipeline start` starts it",
    Health.EMPTY: "nothing is in production",
    Health.ELSEWHERE: "its servers are not on this host: look from there",
}


class ServerStatus(Frozen):
    """A server of a place.

    Attributes:
        slot: `blue`, `green` or `staging`.
        release_id: What it serves; the beginning of the repository's digest where no release is known for it, and
            empty where nothing runs.
        traffic_percent: Its share of the users' traffic, by what the router was told last; None where nobody knows.
        since: When it was started, UTC.
    """

    slot: str
    condition: ServerCondition
    address: str
    release_id: str = ""
    digest: str = ""
    traffic_percent: float | None = None
    since: datetime | None = None

    def __str__(self) -> str:
        share = f"{self.traffic_percent:g} % of the traffic" if self.traffic_percent is not None else ""
        since = f"since {readable_time(self.since)} UTC" if self.since else ""
        return ", ".join(filter(None, (self.condition, self.release_id, share, self.address, since)))


class RouterStatus(Frozen):
    """The router of a place.

    Attributes:
        address: Where users connect; empty where that is not ours to know.
        told_by: Who moved its traffic last.
        candidate: The slot on trial.
        standby: The slot that is asked where production's server fails.
    """

    kind: str
    condition: RouterCondition
    address: str = ""
    told_by: str = ""
    candidate: str = ""
    standby: str = ""

    def __str__(self) -> str:
        told = f"set by {self.told_by}" if self.told_by else ""
        standby = f"{self.standby} is the standby" if self.standby else ""
        return ", ".join(filter(None, (f"{self.kind} {self.condition}", self.address, standby, told)))


class PlaceStatus(Frozen):
    """What serves at one place, and what is wrong there.

    Attributes:
        model_id: Who holds the place; empty while nobody does.
        production: What the pointers call production.
        previous: What they call the release before it.
        on_trial: The release whose canary has not ended; empty for none.
        on_trial_phase: Where that canary stands.
        pause: Since when it waits, by whom and until when; empty while it goes on.
        ask: A command that asks what its users ask; empty while nothing answers them here.
        guard_heard_seconds: When the guard looked at the place last, seconds ago; None for never.
        problems: What does not fit together or does not run, one sentence each.
    """

    place: str
    health: Health
    model_id: str = ""
    production: Pointer | None = None
    previous: Pointer | None = None
    on_trial: str = ""
    on_trial_phase: str = ""
    pause: str = ""
    servers: tuple[ServerStatus, ...] = ()
    router: RouterStatus | None = None
    ask: str = ""
    guard_heard_seconds: float | None = None
    problems: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """The place and how it is, in one sentence."""
        return f"{self.place}: {self.health} ({_HEALTH_WORDS[self.health]})"

    def lines(self) -> Iterator[str]:
        """For people."""
        yield self.headline
        facts = [
            ("production", self._named(self.production)),
            ("previous", self._named(self.previous)),
            ("on trial", f"{self.on_trial} ({self.on_trial_phase})" if self.on_trial else ""),
            ("", self.pause),
            *((server.slot, str(server)) for server in self.servers),
            ("router", str(self.router) if self.router else ""),
            ("ask it", self.ask),
            ("guard", last_pass(self.guard_heard_seconds) if self.router else ""),
            *(("PROBLEM", problem) for problem in self.problems),
        ]
        yield from (f"  {line}" for line in labelled(facts))

    def _named(self, pointer: Pointer | None) -> str:
        if pointer is None:
            return ""
        since = readable_time(pointer.promoted_at)
        return f"{pointer.release_id} of {self.model_id} ({pointer.recipe}) in {pointer.slot} since {since} UTC"


class DeploymentStatus(Frozen):
    """The places that were looked at."""

    deployment: str
    store: str
    places: tuple[PlaceStatus, ...]

    @property
    def exit_code(self) -> ExitCode:
        """0 where all that is in production is well, 1 where something is wrong, 5 where users get no answer."""
        found = {place.health for place in self.places}
        if found & {Health.DEAD, Health.STOPPED, Health.ELSEWHERE} or found <= {Health.EMPTY}:
            return ExitCode.INFRASTRUCTURE
        return ExitCode.NO_GO if Health.DEGRADED in found else ExitCode.GO

    def dead(self) -> Iterator[str]:
        """A sentence for each place whose users get no answer."""
        for place in self.places:
            if place.health is Health.DEAD and place.production is not None:
                yield f"{place.headline}: {place.production.release_id} of {place.model_id} is in production"

    def lines(self) -> Iterator[str]:
        """For people."""
        yield named_deployment(self.deployment, self.store)
        for place in self.places:
            yield from place.lines()


def named_deployment(name: str, store: str) -> str:
    """Which deployment was looked at; the first line of what looks at one."""
    return f"deployment {name}, store {store}"


def disagreements(
    state: PlaceState, record: CanaryRecord | None, traffic: RouteState | None, serves: Mapping[SlotName, str | None]
) -> Iterator[str]:
    """What record, router and slots disagree on, one sentence each; empty while a canary is driven or settled.

    Args:
        state: What is written down of the place.
        record: Of the canary that the target had last.
        traffic: What the router was last told; None where it could not be asked.
        serves: Digest of what each slot's server serves; None for a slot without a server.
    """
    production, way_back = state.production, state.way_back
    if way_back is not None and not way_back.done:
        yield f"the rollback from {way_back.left} to {way_back.to} was begun and is not finished"
    if record is not None and record.phase is Phase.ROLLING_BACK:
        yield f"the rollback of the canary of {record.release_id} was begun and is not finished"
    if production is None:
        return
    if serves.get(production.slot) != production.repository.digest:
        found = serves.get(production.slot)
        what = f"serves {found[:12]}" if found else "has no server"
        yield f"production is {production.release_id} in {production.slot}, but that slot {what}"
    if traffic is None:
        return
    allowed = {None, state.way_back_to.repository.digest if state.way_back_to else None}
    if record is not None and not record.settled and record.candidate == traffic.standby:
        allowed.add(record.repository.digest)
    if traffic.standby is not None and serves.get(traffic.standby) not in allowed:
        yield f"the router uses {traffic.standby} as production's standby, and that slot serves no previous version"
    share = traffic.weights.get(production.slot, 0)
    if not is_moving(record, production) and (share != ALL or traffic.candidate is not None):
        yield (
            f"production is {production.release_id} in {production.slot}, but the router sends it "
            f"{share / 100:g} % of the traffic (set by {traffic.owner})"
        )


_SHOWN_DIGITS = 12
_ALL_DEAD = "all servers are dead: `llm-pipeline start` starts production, and the guard starts one that has ended"


def deployment_status(
    store: ArtifactStore, deployment: Deployment, places: Sequence[str] | None = None
) -> DeploymentStatus:
    """Look at places of a deployment; None for all of them.

    Raises:
        ConfigError: The deployment has no such place.
        PipelineError: The store cannot be read.
    """
    for name in places or ():
        require_place_of(deployment, name)
    return DeploymentStatus(
        deployment=deployment.name,
        store=store.uri,
        places=tuple(_look_at(store, deployment, name) for name in places or deployment.places),
    )


def _look_at(store: ArtifactStore, deployment: Deployment, place: str) -> PlaceStatus:
    """One place; what is damaged is one of its problems."""
    try:
        known = read_place(store, place)
    except IntegrityError as error:
        return PlaceStatus(place=place, health=Health.DEGRADED, problems=(str(error),))
    bare = PlaceStatus(
        place=place,
        health=Health.ELSEWHERE if known.production is not None else Health.EMPTY,
        model_id=known.model_id,
        production=known.production,
        previous=known.way_back_to,
    )
    if not (Path(deployment.state_root) / place).is_dir():
        return bare
    try:
        return bare.model_copy(update=_found_here(store, deployment, place, known))
    except PipelineError as error:
        return PlaceStatus(place=place, health=Health.DEGRADED, problems=(str(error),))


def _found_here(store: ArtifactStore, deployment: Deployment, place: str, known: PlaceState) -> dict[str, object]:
    """What the host of a place's servers shows of it."""
    config, root, production = deployment.places[place], Path(deployment.state_root), known.production
    record = read_canary_record(store, known.on_trial, place) if known.on_trial else None
    on_trial = record if record is not None and not record.settled else None
    names = {record.repository.digest: record.release_id} if record is not None else {}
    names |= {one.repository.digest: one.release_id for one in (known.previous, production) if one is not None}
    router, traffic = _router(deployment, place)
    slots, heard = slots_of(store, deployment, place), last_heard(store, place)
    servers: dict[SlotName, ServerStatus] = {}
    for slot, server in config.slots.items():
        digest, running = slots.served(slot), find_server(slot_state(root, place, slot))
        condition: ServerCondition = "is running but gives no answer" if digest else "stopped"
        if slots.ended(slot):
            condition = "has ended"
        elif digest and slots.answers(slot):
            condition = "answers"
        servers[slot] = ServerStatus(
            slot=slot,
            condition=condition,
            address=slot_endpoint(server).url,
            release_id=names.get(digest, digest[:_SHOWN_DIGITS]),
            digest=digest,
            traffic_percent=traffic.weights.get(slot, 0) / 100 if traffic is not None else None,
            since=running.started_at if running is not None else None,
        )
    stopped = is_stopped(servers, router, router_is_ours=bool(config.router.ports_here()))
    problems: list[str] = []
    if not stopped:
        digests = {slot: server.digest or None for slot, server in servers.items()}
        problems += disagreements(known, record, traffic, digests)
        problems += not_running(known, servers, router)
    if on_trial is not None and not is_recent(heard):
        problems.append(f"the canary of {on_trial.release_id} is running, and no guard watches it")
    health = judge_health(known, servers, router, problems, stopped=stopped)
    if health is Health.DEAD and _users_are_answered(config):  # a busy server answers them, and no short question
        health = Health.DEGRADED
    elif production is not None and not stopped and all(one.condition != "answers" for one in servers.values()):
        problems.append(_ALL_DEAD)
    staged, shown, ask = find_server(root / place / STAGING), [*servers.values()], ""
    if isinstance(config.staging, ServerPorts) and staged is not None:
        staging = ServerStatus(
            slot=STAGING,
            condition="answers" if staged.ready else "is running but gives no answer",
            address=loopback_endpoint(config.staging).url,
            release_id=names.get(staged.digest, staged.digest[:_SHOWN_DIGITS]),
            digest=staged.digest,
            since=staged.started_at,
        )
        shown.append(staging)
    if production is not None:
        serving = find_server(slot_state(root, place, production.slot))
        ask = curl_line(config, serving.about if serving else None)
    return {
        "health": health,
        "on_trial": on_trial.release_id if on_trial is not None else "",
        "on_trial_phase": on_trial.phase.value if on_trial is not None else "",
        "pause": standing_pause(known, on_trial) if on_trial is not None else "",
        "servers": tuple(shown),
        "router": router,
        "ask": ask,
        "guard_heard_seconds": heard,
        "problems": tuple(problems),
    }


def _users_are_answered(place: TargetPlace) -> bool:
    """Whether the router answers what a user asks, where its address is known here."""
    url, certificate = place.router.users_url(), place.router.users_certificate() or None
    if not url:
        return False
    asked = slot_endpoint(place.blue).model_copy(update={"url": url, "ca_file": certificate})
    try:
        return asyncio.run(generates(asked))
    except PipelineError:
        return False


def _router(deployment: Deployment, name: str) -> tuple[RouterStatus, RouteState | None]:
    place, router, traffic = deployment.places[name].router, router_here(deployment, name), None
    with contextlib.suppress(PipelineError):
        traffic = router.read()[0] if router is not None else None
    condition: RouterCondition = "runs" if traffic is not None else "cannot be read"
    if router is None:
        condition = "never started"
    elif isinstance(router, StartedRouter):
        condition = router.condition()
    owner, candidate, standby = (traffic.owner, traffic.candidate, traffic.standby) if traffic else ("", None, None)
    told = {"told_by": owner, "candidate": candidate or "", "standby": standby or ""}
    return RouterStatus(kind=place.kind, condition=condition, address=place.users_url(), **told), traffic


def is_stopped(servers: Mapping[SlotName, ServerStatus], router: RouterStatus, *, router_is_ours: bool = True) -> bool:
    """Whether somebody stopped production: nothing that we start runs, and nothing ended by itself."""
    ended = router.condition == "stopped" or not router_is_ours
    return ended and all(one.condition == "stopped" for one in servers.values())


def not_running(known: PlaceState, servers: Mapping[SlotName, ServerStatus], router: RouterStatus) -> Iterator[str]:
    """What should run for the users and does not, one sentence each; production's own server is reported elsewhere."""
    if known.production is None:
        return
    if router.condition != "runs":
        yield f"the {router.kind} router {router.condition}: users get no answer"
    for slot, server in servers.items():
        wanted = slot == known.production.slot or bool(server.traffic_percent)
        missing = server.digest == "" and slot == known.production.slot
        if wanted and not missing and server.condition != "answers":
            yield f"the server in {slot} ({server.release_id or 'unknown'}) {server.condition}"


def judge_health(
    known: PlaceState,
    servers: Mapping[SlotName, ServerStatus],
    router: RouterStatus,
    problems: Sequence[str],
    *,
    stopped: bool,
) -> Health:
    """How a place of this host is, from its users' point of view."""
    if known.production is None:
        return Health.DEGRADED if problems else Health.EMPTY
    if stopped:
        return Health.STOPPED
    served = [
        slot
        for slot, server in servers.items()
        if server.condition == "answers"
        # their requests go there, or fail over to it
        and (server.traffic_percent != 0 or router.candidate != "" or router.standby == slot)
    ]
    if not served or router.condition not in ("runs", "cannot be read"):
        return Health.DEAD
    return Health.DEGRADED if problems else Health.HEALTHY


_PROMPT, _TOKENS = "Hello", 32
_CURL = "curl -sS -i --noproxy '*'"
"""Our own servers are never asked through a proxy, which would look for a loopback address on its own host."""


def last_words(flow: ReleaseProgress, verdict: Verdict) -> Iterator[str]:
    """One line a fact, for people.

    Args:
        flow: The release.
        verdict: What it came to.
    """
    release_id = flow.record.release_id
    facts: list[tuple[str, str]] = []
    for place in dict.fromkeys(flow.record.place_of(target) for target in flow.targets):
        serving = serving_at(flow.store, place)
        if serving is None:
            facts.append((f"{place} serves", "nothing"))
            continue
        pointer = serving.pointer
        known = "this release" if pointer.release_id == release_id else f"{pointer.release_id}, as before"
        facts.append((f"{place} serves", f"{known} ({serving.model_id}, {pointer.recipe}, in {pointer.slot})"))
        server = find_server(slot_state(Path(flow.deployment.state_root), place, pointer.slot))
        facts.append(("ask it", curl_line(flow.deployment.places[place], server.about if server else None)))
    report = flow.find("report")
    uri = urlsplit(str(report.metrics.get("report", "")) if report else "")
    facts.append(("report", str(Path(unquote(uri.path))) if uri.scheme == "file" else uri.geturl()))
    yield f"{release_id}: {verdict}{verdict.see}"
    yield from (f"  {line}" for line in labelled(facts))


def curl_line(place: TargetPlace, spoken: EndpointDescription | None) -> str:
    """A command that asks what a place's users ask; it can be pasted where the router's address is known.

    Args:
        place: The place.
        spoken: What is said of the model of our own server there; None where none is known.
    """
    what: Mapping[str, object] = {"prompt": _PROMPT}
    route, model = "completions", None if spoken is None else spoken.model
    if spoken is not None and spoken.chat.template is not None:
        route, what = "chat/completions", {"messages": [{"role": "user", "content": _PROMPT}]}
    elif isinstance(place.blue, OpenAiSlot):
        model = place.blue.endpoint.openai_model
    asked, address, certificate = _asked(route, model, what), place.router.users_url(), place.router.users_certificate()
    if not address:
        return f"curl -sS -i https://YOUR-ROUTE{asked}"
    trusted = f" --cacert {shlex.quote(certificate)}" if certificate else ""
    return f"{_CURL}{trusted} {address}{asked}"


def curl_line_at(address: str) -> str:
    """The same of the address of one of our servers."""
    return f"{_CURL} {address}{_asked('completions', None, {'prompt': _PROMPT})}"


def _asked(route: str, model: str | None, what: Mapping[str, object]) -> str:
    body = json.dumps({**({"model": model} if model else {}), **what, "max_tokens": _TOKENS})
    return f"/v1/{route} -H 'Content-Type: application/json' -d {shlex.quote(body)}"
