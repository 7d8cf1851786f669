"""The port to the two production slots of a target, for Triton servers of this host and for servers of somebody else.

The latter have OpenAI's API, are started by somebody with a release's checkpoint, and do not say which artifact they
serve. What can be checked is: such a server has the model under the name that users ask for, and it gives the release's
golden answers, before it is taken and before each step is passed. What `/v1/models` calls the model's `root`, where it
says so, must stay the same meanwhile. What a slot was taken for is written down.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from llm_pipeline.artifacts.golden import read_golden
from llm_pipeline.base.durable import replace_durably
from llm_pipeline.base.errors import ConfigError, IntegrityError, PipelineError, Transient
from llm_pipeline.base.json_document import find_record
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.canary.router import Patience, SlotName, TrafficRouter
from llm_pipeline.config.deployment import Deployment, TargetPlace
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.release import Drill
from llm_pipeline.config.server_place import OpenAiSlot, SlotServer
from llm_pipeline.serving.endpoint_access import active_requests, model_root, once_it_answers
from llm_pipeline.serving.ports import loopback_endpoint
from llm_pipeline.serving.repository_links import fetch_servable
from llm_pipeline.serving.server_log import engine_death
from llm_pipeline.serving.slot_fence import FencingToken, admit, exclusive, newest_token
from llm_pipeline.serving.triton_server import (
    SERVER_LOG,
    SlotBusy,
    find_server,
    has_ended,
    is_running,
    start_server,
    stop_server,
)
from llm_pipeline.store.artifact_store import ArtifactStore

if TYPE_CHECKING:
    from llm_pipeline.serving.client import Generation

log = get_logger(__name__)

DRILL_VARIABLE = "LLM_PIPELINE_DRILL"
WARM_UP_PROMPTS = 24
RECOGNISED = 0.8
"""Share of the golden answers that a server must give, where no policy asks for less: they showed in staging that the
release answers as it should; under load an engine's batches change some of them."""

LONGEST_LOAD_SECONDS = 3600.0
"""Staging loaded the same repository within its policy's time. A server that fails ends at once, not after this."""

_PROBE, _PROBE_TIMEOUT_SECONDS = "Hello", 15.0
_ANSWER_SECONDS = 60.0


class WarmUp(Frozen):
    """How a newly started server answered the golden prompts; whether answers match was staging's gate."""

    prompts: int
    answered: int
    matched: int

    def unlike(self, share: float = RECOGNISED) -> str:
        """Why these are not the answers of the release, of which a share must be given; empty if they are."""
        if self.matched >= share * self.prompts:
            return ""
        return f"it gives {self.matched} of {self.prompts} golden answers, and {share:.0%} are needed"


class SlotControl(Protocol):
    """Starts and stops the servers in the slots of a place. Every act shows a fencing token; stale ones are refused."""

    def newest(self) -> FencingToken:
        """The newest token that was shown: a new owner goes above it, and the guard uses it as it is.

        Raises:
            IntegrityError: It is not known.
        """

    def ensure(self, slot: SlotName, repository: ArtifactRef, token: FencingToken) -> None:
        """Make sure that the slot serves this repository, without disturbing it if it does (the stable side).

        Raises:
            ConfigError: The slot serves something else.
            Fenced: Somebody else took over; nothing was done.
        """

    def replace(self, slot: SlotName, repository: ArtifactRef, token: FencingToken) -> None:
        """Make the slot serve this repository, stopping any other server there (the candidate's side).

        Raises:
            Fenced: Somebody else took over; nothing was done.
        """

    def warm_up(self, slot: SlotName, repository: ArtifactRef) -> WarmUp:
        """Replay golden prompts, so that the first user does not meet a cold server."""

    def alive(self, slot: SlotName) -> bool:
        """Whether the slot's server process runs."""

    def ended(self, slot: SlotName) -> bool:
        """Whether the slot's server is gone without having been stopped: it crashed, or its host was restarted."""

    def served(self, slot: SlotName) -> str:
        """Digest of the repository that the slot's server was started with; empty without one."""

    def answers(self, slot: SlotName) -> bool:
        """Whether the slot's server answers a generation now, whatever it serves."""

    def in_flight(self, slot: SlotName) -> int | None:
        """Requests in flight by the server's own count; None when it does not tell."""

    def engine_death(self, slot: SlotName) -> str:
        """What the log of the slot's newest server says of its engine's death; empty if nothing, or it is not here."""

    def stop(self, slot: SlotName, repository: ArtifactRef, token: FencingToken) -> bool:
        """Stop the slot's server of this repository, if there is one.

        Returns:
            False when the slot serves something else by now, which goes on.

        Raises:
            Fenced: Somebody else took over; nothing was done.
        """

    def differs(self, slot: SlotName, repository: ArtifactRef) -> str | None:  # noqa: ARG002 - started here, it is known
        """Why what others started in a slot does not give this release's golden answers; None if it does."""
        return None


@dataclass(frozen=True)
class ServedPlace:
    """Where a model is served on a target: what every act there is made with.

    Attributes:
        model_id: The model that is acted for; empty where it does not matter which one serves.
        router: The target's router, running or not; None where none ever ran.
        slots: The target's slots.
        patience: How long each part of a move is tried.
    """

    store: ArtifactStore
    model_id: str
    target: str
    router: TrafficRouter | None
    slots: SlotControl
    patience: Patience


def slot_endpoint(server: SlotServer) -> Endpoint:
    """Where a slot's server answers, past the router."""
    return server.endpoint if isinstance(server, OpenAiSlot) else loopback_endpoint(server)


def slot_state(state_root: Path, target: str, slot: SlotName) -> Path:
    """The slot's state directory."""
    return state_root / target / slot


@dataclass(frozen=True)
class _Slots(SlotControl):
    """What both kinds of slots have.

    Attributes:
        store: Where the repositories with the golden prompts are.
        servers: Both slots.
        target: The target's name.
        state_root: Directory of all servers' state.
    """

    store: ArtifactStore
    servers: Mapping[SlotName, SlotServer]
    target: str
    state_root: Path

    def newest(self) -> FencingToken:
        return newest_token(self.state_root / self.target)

    def warm_up(self, slot: SlotName, repository: ArtifactRef) -> WarmUp:
        """Replay golden prompts; how many were answered, and as they were judged."""
        from llm_pipeline.serving.client import GenerationClient, GenerationRequest

        golden = read_golden(self.store.fetch(repository))[:WARM_UP_PROMPTS]
        endpoint = slot_endpoint(self.servers[slot])
        asked = [GenerationRequest(one.prompt, one.maximum_tokens, allow_empty=True) for one in golden]

        async def replay() -> list[Generation]:
            """The first request alone, the others as one batch."""
            async with GenerationClient.of(endpoint, timeout_seconds=_ANSWER_SECONDS) as client:
                first = [await client.generate(request) for request in asked[:1]]
                return first + list(await asyncio.gather(*(client.generate(request) for request in asked[1:])))

        answered, matched = 0, 0
        for prompt, answer in zip(golden, asyncio.run(replay()), strict=True):
            if answer.ok:
                wanted, got = prompt.compared(answer.text, was_cut=answer.finish_reason == "length")
                answered += 1
                matched += wanted == got
        return WarmUp(prompts=len(golden), answered=answered, matched=matched)

    def engine_death(self, slot: SlotName) -> str:
        return engine_death(self._state(slot) / SERVER_LOG)

    def answers(self, slot: SlotName) -> bool:
        try:
            return self.alive(slot) and asyncio.run(generates(slot_endpoint(self.servers[slot])))
        except PipelineError as error:  # its key is not set here: whether it answers cannot be known
            log.warning("cannot ask the server", slot=slot, reason=str(error))
            return False

    def _state(self, slot: SlotName) -> Path:
        return slot_state(self.state_root, self.target, slot)


@dataclass(frozen=True, kw_only=True)
class TritonSlots(_Slots):
    """Slots that are Triton servers on this machine.

    Attributes:
        triton_home: Directory with the unpacked nvidia-pytriton wheel, or an installed server.
        python: Interpreter of the model's code; without both, servers can be stopped but not started.
        drill: A fault for the candidate's server only.
    """

    triton_home: Path | None = None
    python: Path | None = None
    drill: Drill | None = None

    def ensure(self, slot: SlotName, repository: ArtifactRef, token: FencingToken) -> None:
        admit(self.state_root / self.target, token)
        server = find_server(self._state(slot))
        if server is None or (server.digest == repository.digest and not self.alive(slot)):
            self._start(slot, repository, {}, token)
        elif server.digest != repository.digest:
            raise ConfigError(
                f"slot {slot} should serve {repository} but serves {server.repository}",
                where=str(self._state(slot)),
                hint="somebody started it by hand: stop that server, then run this again",
            )

    def replace(self, slot: SlotName, repository: ArtifactRef, token: FencingToken) -> None:
        environment = {DRILL_VARIABLE: self.drill.model_dump_json()} if self.drill else {}
        try:
            self._start(slot, repository, environment, token)
        except SlotBusy:
            log.info("making room for the candidate", slot=slot)
            stop_server(self._state(slot), token=token)
            self._start(slot, repository, environment, token)

    def alive(self, slot: SlotName) -> bool:
        return is_running(self._state(slot))

    def ended(self, slot: SlotName) -> bool:
        return has_ended(self._state(slot))

    def served(self, slot: SlotName) -> str:
        server = find_server(self._state(slot))
        return server.digest if server is not None else ""

    def in_flight(self, slot: SlotName) -> int | None:
        try:
            server = find_server(self._state(slot))
        except ConfigError:  # whoever stops it need not know
            return None
        return active_requests(server.endpoint) if server is not None else None

    def stop(self, slot: SlotName, repository: ArtifactRef, token: FencingToken) -> bool:
        return stop_server(self._state(slot), digest=repository.digest, token=token)

    def _start(
        self, slot: SlotName, repository: ArtifactRef, environment: Mapping[str, str], token: FencingToken
    ) -> None:
        ports = self.servers[slot]
        if self.triton_home is None or self.python is None or isinstance(ports, OpenAiSlot):
            hint = "name an interpreter of this host as the deployment's environment `model`"
            raise ConfigError("servers can only be stopped from here, not started", where=slot, hint=hint)
        directory, links = fetch_servable(self.store, repository)
        start_server(
            directory,
            ports,
            triton_home=self.triton_home,
            python=self.python,
            state=self._state(slot),
            environment=environment,
            digest=repository.digest,
            links=links,
            wait_seconds=LONGEST_LOAD_SECONDS,
            token=token,
        )


async def generates(endpoint: Endpoint) -> bool:
    """Whether a server generates a token."""
    from llm_pipeline.serving.client import GenerationClient, GenerationRequest

    async with GenerationClient.of(endpoint, timeout_seconds=_PROBE_TIMEOUT_SECONDS) as client:
        return (await client.generate(GenerationRequest(_PROBE, 1, allow_empty=True))).ok


_RECORD = "openai.json"
_CONNECT_SECONDS = 2.0


class Taken(Frozen):
    """What a slot's server was taken for.

    Attributes:
        digest: Of the release's model repository.
        root: What `/v1/models` calls the model's root; None where it does not say.
    """

    digest: str
    root: str | None = None


@dataclass(frozen=True, kw_only=True)
class OpenAiSlots(_Slots):
    """`SlotControl` of servers that nobody here can start: they are waited for, recognised and asked.

    Attributes:
        servers: Both slots.
        recognised: Share of the golden answers that a server must give.
        wait_seconds: How long a candidate's server is waited for that does not answer yet.
    """

    servers: Mapping[SlotName, OpenAiSlot]
    recognised: float = RECOGNISED
    wait_seconds: float = 300.0

    def ensure(self, slot: SlotName, repository: ArtifactRef, token: FencingToken) -> None:
        with self._acting(slot, token):
            taken = self._taken(slot)
            if taken is not None and taken.digest != repository.digest:
                raise ConfigError(
                    f"slot {slot} should serve {repository} but was accepted for {taken.digest[:12]}",
                    where=self.servers[slot].endpoint.url,
                    hint="serve that release there, or first finish or roll back the release in this slot",
                )
            self._take(slot, repository, wait_seconds=0.0)

    def replace(self, slot: SlotName, repository: ArtifactRef, token: FencingToken) -> None:
        with self._acting(slot, token):
            self._take(slot, repository, wait_seconds=self.wait_seconds)

    def differs(self, slot: SlotName, repository: ArtifactRef) -> str | None:
        """Why what answers there is not this release; None if it is, as far as its golden answers tell."""
        taken = self._taken(slot)
        try:
            root = model_root(self.servers[slot].endpoint)
            if taken is not None and taken.root != root:
                return f"its model's root was {taken.root}, and is {root} now"
            return self._unlike(slot, repository)
        except (Transient, IntegrityError) as error:
            return error.message

    def alive(self, slot: SlotName) -> bool:
        """Whether it was taken, and something listens there. One that hangs is found by its requests."""
        return self._taken(slot) is not None and self._listens(slot)

    def ended(self, slot: SlotName) -> bool:
        return self._taken(slot) is not None and not self._listens(slot)

    def served(self, slot: SlotName) -> str:
        """What the slot was taken for, whether its server runs or not."""
        taken = self._taken(slot)
        return taken.digest if taken is not None else ""

    def in_flight(self, slot: SlotName) -> int | None:
        return active_requests(self.servers[slot].endpoint)

    def stop(self, slot: SlotName, repository: ArtifactRef, token: FencingToken) -> bool:
        """Give the server back; it goes on running until whoever started it ends it."""
        with self._acting(slot, token):
            taken = self._taken(slot)
            if taken is None:
                return True
            if taken.digest != repository.digest:
                return False
            (self._state(slot) / _RECORD).unlink()
        log.info("the server is no longer needed: stop it, or serve another release there", slot=slot,
                 url=self.servers[slot].endpoint.url)  # fmt: skip
        return True

    def _take(self, slot: SlotName, repository: ArtifactRef, *, wait_seconds: float) -> None:
        """Write down that the server is the release's, once it was recognised.

        Raises:
            Transient: It does not answer.
            ConfigError: It gives other answers than the release.
            IntegrityError: It has no model of that name.
        """
        endpoint = self.servers[slot].endpoint
        try:
            root = once_it_answers(model_root, endpoint, wait_seconds)
        except Transient as error:
            raise Transient(
                f"the server in {slot} cannot be started from here, and does not answer: {error.message}",
                where=endpoint.url,
                hint="start it with the release's checkpoint",
            ) from error
        wanted = Taken(digest=repository.digest, root=root)
        if self._taken(slot) == wanted:
            return
        if (unlike := self._unlike(slot, repository)) is not None:
            raise ConfigError(
                f"the server in {slot} does not serve this release: {unlike}",
                where=endpoint.url,
                hint="serve the release's checkpoint there under that model's name, then run this again",
            )
        replace_durably(self._state(slot) / _RECORD, wanted.model_dump_json(indent=1).encode())

    def _unlike(self, slot: SlotName, repository: ArtifactRef) -> str | None:
        """How its golden answers are unlike the release's; None if they are alike."""
        given = self.warm_up(slot, repository)
        if not given.prompts:
            return "the release has no golden answers to recognise its server by"
        return given.unlike(self.recognised) or None

    def _listens(self, slot: SlotName) -> bool:
        try:
            with socket.create_connection(self.servers[slot].address, timeout=_CONNECT_SECONDS):
                return True
        except TimeoutError:
            return True
        except OSError:
            return False

    def _taken(self, slot: SlotName) -> Taken | None:
        problem = "not a record of the release that a slot was accepted for"
        return find_record(Taken, self._state(slot) / _RECORD, problem)

    @contextmanager
    def _acting(self, slot: SlotName, token: FencingToken) -> Iterator[None]:
        with exclusive(self._state(slot)):
            admit(self.state_root / self.target, token)
            yield


def open_slots(
    store: ArtifactStore,
    place: TargetPlace,
    target: str,
    state_root: Path,
    *,
    triton_home: Path,
    python: Path | None,
    drill: Drill | None = None,
    recognised: float = RECOGNISED,
) -> SlotControl:
    """What controls the servers of a place's slots; see `OpenAiSlots` and `TritonSlots`."""
    servers = place.slots
    others = {slot: server for slot, server in servers.items() if isinstance(server, OpenAiSlot)}
    if others:
        return OpenAiSlots(store, target, state_root, servers=others, recognised=recognised)
    return TritonSlots(store, servers, target, state_root, triton_home=triton_home, python=python, drill=drill)


def slots_of(store: ArtifactStore, deployment: Deployment, target: str) -> SlotControl:
    """The slots of a deployment's place; without an interpreter of the model's code servers can only be stopped."""
    place, python = deployment.places[target], None
    if not isinstance(place.blue, OpenAiSlot):
        try:
            python = Path(deployment.interpreter(place.environment))
        except ConfigError as error:
            log.warning("servers cannot be started from here", reason=str(error))
    home = Path(deployment.triton_home)
    return open_slots(store, place, target, Path(deployment.state_root), triton_home=home, python=python)
