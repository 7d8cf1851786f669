"""Slots that are servers with OpenAI's API, which somebody else starts with a release's checkpoint, and stops.

Such a server does not say which artifact it serves. What can be checked is: it has the model under the name that users
ask for, and it gives the release's golden answers, before it is taken and before each step is passed. What `/v1/models`
calls the model's `root`, where it says so, must stay the same meanwhile. What a slot was taken for is written down.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from llm_pipeline.artifacts.golden import read_golden
from llm_pipeline.base.durable import replace_durably
from llm_pipeline.base.errors import ConfigError, IntegrityError, PipelineError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.canary.router import SlotName
from llm_pipeline.canary.slots import (
    RECOGNISED,
    WARM_UP_PROMPTS,
    SlotControl,
    TritonSlots,
    WarmUp,
    generates,
    slot_servers,
    slot_state,
    warm_up,
)
from llm_pipeline.config.deployment import Deployment, TargetPlace
from llm_pipeline.config.server_place import OpenAiSlot
from llm_pipeline.serving.endpoint_access import active_requests, model_root
from llm_pipeline.serving.slot_fence import FencingToken, admit, exclusive, newest_token
from llm_pipeline.store.artifact_store import ArtifactStore

log = get_logger(__name__)

_RECORD = "openai.json"
_POLL_SECONDS = 1.0
_CONNECT_SECONDS = 2.0
_REQUEST_TIMEOUT_SECONDS = 60.0


class Taken(Frozen):
    """What a slot's server was taken for.

    Attributes:
        digest: Of the release's model repository.
        root: What `/v1/models` calls the model's root; None where it does not say.
        released: It is no longer needed here; it may be serving all the same.
    """

    digest: str
    root: str | None = None
    released: bool = False


class OpenAiSlots:
    """`SlotControl` of servers that nobody here can start: they are waited for, recognised and asked.

    Args:
        store: Where the repositories with the golden prompts are.
        servers: Both slots.
        target: The target's name.
        state_root: Directory of all servers' state.
        recognised: Share of the golden answers that a server must give.
        wait_seconds: How long a candidate's server is waited for that does not answer yet.
    """

    def __init__(
        self,
        store: ArtifactStore,
        servers: Mapping[SlotName, OpenAiSlot],
        *,
        target: str,
        state_root: Path,
        recognised: float = RECOGNISED,
        wait_seconds: float = 300.0,
    ) -> None:
        self._store, self._servers = store, dict(servers)
        self._target, self._state_root = target, state_root
        self._recognised, self._wait_seconds = recognised, wait_seconds

    def newest(self) -> FencingToken:
        return newest_token(self._place_state)

    def ensure(self, slot: SlotName, repository: ArtifactRef, token: FencingToken) -> None:
        with self._acting(slot, token):
            taken = self._taken(slot)
            if taken is not None and not taken.released and taken.digest != repository.digest:
                raise ConfigError(
                    f"slot {slot} should serve {repository} but was accepted for {taken.digest[:12]}",
                    where=self._servers[slot].endpoint.url,
                    hint="serve that release there, or first finish or roll back the release in this slot",
                )
            self._take(slot, repository, wait_seconds=0.0)

    def replace(self, slot: SlotName, repository: ArtifactRef, token: FencingToken) -> None:
        with self._acting(slot, token):
            self._take(slot, repository, wait_seconds=self._wait_seconds)

    def warm_up(self, slot: SlotName, repository: ArtifactRef) -> WarmUp:
        golden = read_golden(self._store.fetch(repository))[:WARM_UP_PROMPTS]
        return warm_up(self._servers[slot].endpoint, golden, timeout_seconds=_REQUEST_TIMEOUT_SECONDS)

    def differs(self, slot: SlotName, repository: ArtifactRef) -> str | None:
        """Why what answers there is not this release; None if it is, as far as its golden answers tell."""
        taken = self._taken(slot)
        try:
            root = model_root(self._servers[slot].endpoint)
            if taken is not None and taken.root != root:
                return f"its model's root was {taken.root}, and is {root} now"
            return self._unlike(slot, repository)
        except (Transient, IntegrityError) as error:
            return error.message

    def alive(self, slot: SlotName) -> bool:
        """Whether it was taken, and something listens there. One that hangs is found by its requests."""
        taken = self._taken(slot)
        return taken is not None and not taken.released and self._listens(slot)

    def ended(self, slot: SlotName) -> bool:
        taken = self._taken(slot)
        return taken is not None and not taken.released and not self._listens(slot)

    def serves(self, slot: SlotName, repository: ArtifactRef) -> bool:
        taken = self._taken(slot)
        return taken is not None and taken.digest == repository.digest and self.alive(slot)

    def answers(self, slot: SlotName) -> bool:
        return self.alive(slot) and self._generates(slot)

    def in_flight(self, slot: SlotName) -> int | None:
        return active_requests(self._servers[slot].endpoint)

    def stop(self, slot: SlotName, repository: ArtifactRef, token: FencingToken) -> bool:
        """Give the server back; it goes on running until whoever started it ends it."""
        with self._acting(slot, token):
            taken = self._taken(slot)
            if taken is None or taken.released:
                return True
            if taken.digest != repository.digest:
                return False
            self._note(slot, taken.model_copy(update={"released": True}))
        log.info("the server is no longer needed: stop it, or serve another release there", slot=slot,
                 url=self._servers[slot].endpoint.url)  # fmt: skip
        return True

    def taken_for(self, slot: SlotName) -> str:
        """Digest of what the slot was taken for; empty where it is free."""
        taken = self._taken(slot)
        return taken.digest if taken is not None and not taken.released else ""

    def _take(self, slot: SlotName, repository: ArtifactRef, *, wait_seconds: float) -> None:
        """Write down that the server is the release's, once it was recognised.

        Raises:
            Transient: It does not answer.
            ConfigError: It gives other answers than the release.
            IntegrityError: It has no model of that name.
        """
        root, taken = self._await_model(slot, wait_seconds), self._taken(slot)
        wanted = Taken(digest=repository.digest, root=root)
        if taken == wanted:
            return
        if (unlike := self._unlike(slot, repository)) is not None:
            raise ConfigError(
                f"the server in {slot} does not serve this release: {unlike}",
                where=self._servers[slot].endpoint.url,
                hint="serve the release's checkpoint there under that model's name, then run this again",
            )
        self._note(slot, wanted)

    def _await_model(self, slot: SlotName, wait_seconds: float) -> str | None:
        deadline = time.monotonic() + wait_seconds
        while True:
            try:
                return model_root(self._servers[slot].endpoint)
            except Transient as error:
                if time.monotonic() >= deadline:
                    raise Transient(
                        f"the server in {slot} cannot be started from here, and does not answer: {error.message}",
                        where=self._servers[slot].endpoint.url,
                        hint="start it with the release's checkpoint",
                    ) from error
                time.sleep(_POLL_SECONDS)

    def _unlike(self, slot: SlotName, repository: ArtifactRef) -> str | None:
        """How its golden answers are unlike the release's; None if they are alike."""
        given = self.warm_up(slot, repository)
        if not given.prompts:
            return "the release has no golden answers to recognise its server by"
        return given.unlike(self._recognised) or None

    def _generates(self, slot: SlotName) -> bool:
        try:
            return asyncio.run(generates(self._servers[slot].endpoint))
        except PipelineError as error:  # its key is not set here: whether it answers cannot be known
            log.warning("cannot ask the server", slot=slot, reason=str(error))
            return False

    def _listens(self, slot: SlotName) -> bool:
        try:
            with socket.create_connection(self._servers[slot].address, timeout=_CONNECT_SECONDS):
                return True
        except TimeoutError:
            return True
        except OSError:
            return False

    @property
    def _place_state(self) -> Path:
        return self._state_root / self._target

    def _file(self, slot: SlotName) -> Path:
        return slot_state(self._state_root, self._target, slot) / _RECORD

    def _taken(self, slot: SlotName) -> Taken | None:
        file = self._file(slot)
        try:
            return Taken.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise IntegrityError("not a record of the release that a slot was accepted for", where=str(file)) from error

    def _note(self, slot: SlotName, taken: Taken) -> None:
        replace_durably(self._file(slot), taken.model_dump_json(indent=1).encode())

    @contextmanager
    def _acting(self, slot: SlotName, token: FencingToken) -> Iterator[None]:
        with exclusive(self._file(slot).parent):
            admit(self._place_state, token)
            yield


def openai_servers(place: TargetPlace) -> dict[SlotName, OpenAiSlot]:
    """The servers with OpenAI's API; none where the slots are Tritons of this host."""
    return {slot: server for slot, server in slot_servers(place).items() if isinstance(server, OpenAiSlot)}


def slots_of(store: ArtifactStore, deployment: Deployment, target: str) -> SlotControl:
    """The slots of a deployment's place; without an interpreter of the model's code servers can only be stopped."""
    place, state_root = deployment.places[target], Path(deployment.state_root)
    if servers := openai_servers(place):
        return OpenAiSlots(store, servers, target=target, state_root=state_root)
    try:
        python = Path(deployment.serving_interpreter(target))
    except ConfigError as error:
        log.warning("servers cannot be started from here", reason=str(error))
        python = None
    triton_home = Path(deployment.triton_home)
    return TritonSlots(store, place, target=target, state_root=state_root, triton_home=triton_home, python=python)
