"""A target in memory, for the controller's logic: the ports' contracts are kept (epochs, revisions), nothing is served.

Every effect (a document written, the router told, a slot touched) passes `Site.effect`, which can end the controller
before or after it, as SIGKILL would: nothing it does later has an effect either.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from place_here import serve
from pydantic import JsonValue
from resolved_release import resolve

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.errors import ConfigError, Fenced, Transient
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Judgement
from llm_pipeline.canary.access_log import LogCursor, ObservedRequest
from llm_pipeline.canary.controller import CanaryController, LoggedTraffic, Traffic
from llm_pipeline.canary.metrics import ArmWindow, Histogram, MetricsWindow, SourceDown
from llm_pipeline.canary.record import (
    CanaryJournal,
    CanaryPlan,
    CanaryRecord,
    lease_name,
    read_canary_record,
    take_over,
)
from llm_pipeline.canary.router import ALL, Patience, RouterConflict, RouteState, SlotName, TrafficRouter, all_to
from llm_pipeline.canary.slots import ServedPlace, SlotControl, WarmUp
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.operations.guard import Guard, GuardAction
from llm_pipeline.operations.rollback import roll_back
from llm_pipeline.operations.status import disagreements
from llm_pipeline.operations.upkeep import promote
from llm_pipeline.serving.slot_fence import FencingToken, admit, newest_token
from llm_pipeline.store.lease import Lease
from llm_pipeline.store.place_state import PlaceState, Pointer, read_place

STABLE = ArtifactRef(kind="model_repository", digest="a" * 64)
CANDIDATE = ArtifactRef(kind="model_repository", digest="b" * 64)
PATIENCE = Patience(write=0.1, confirm=0.1, prove=0.02, usable=0.1, blind_drain=0.0)
MODEL = "demo/tiny"
FIRST = Pointer(
    release_id="r0", repository=STABLE, slot="blue", recipe="none", promoted_at=datetime(2026, 1, 1, tzinfo=UTC)
)
POLICY = {
    "steps_percent": [20, 50, 100],
    "minimum_bake_seconds": 0.001,
    "maximum_bake_seconds": 0.05,
    "minimum_requests": 10,
    "slow_quantiles": [0.9],
    "look_seconds": 0.001,
    "drain_seconds": 0.1,
}

LONGER = {"minimum_bake_seconds": 0.06, "maximum_bake_seconds": 5.0}
"""Steps long enough for several blocks of time, without which nobody is called slow."""


class Killed(BaseException):
    """The controller's process is gone."""


class Store(LocalStore):
    """The local store; each document written is an effect."""

    site: Site

    def write_document(self, name: str, value: Mapping[str, JsonValue], expect: str | None) -> str:
        if not self.site.store_takes:
            raise Transient(f"cannot write {name}: no space left on device")
        with self.site.effect(f"write {name.partition('/')[0]} {value.get('phase', '')}"):
            return super().write_document(name, value, expect)


class Router(TrafficRouter):
    """Keeps what it was told; refuses lower epochs and unexpected revisions."""

    def __init__(self, site: Site) -> None:
        self.site, self.state, self.number = site, all_to("blue", owner="test", epoch=0), 0

    def read(self) -> tuple[RouteState, str]:
        return self.state, str(self.number)

    def write(self, want: RouteState, expect: str | None) -> str:
        with self.site.effect(f"route {want.weights}"):
            if want.epoch < self.state.epoch:
                raise Fenced("a higher epoch was seen")
            if expect not in (None, str(self.number)):
                raise RouterConflict("another revision")
            self.state, self.number = want, self.number + 1
            self.site.told.append(want)
        return str(self.number)

    def converged(self, revision: str) -> bool:
        return revision == str(self.number)

    def usable(self, slot: SlotName) -> bool:
        return slot in self.site.running

    def revive(self) -> str | None:
        if not self.site.router_ended:
            return None
        if not self.site.router_starts:
            raise ConfigError("its port is in use")
        self.site.router_ended = False
        return "the router had ended and was restarted"

    def active_requests(self, slot: SlotName) -> int | None:
        meanwhile, self.site.in_drain = self.site.in_drain, None
        if meanwhile is not None:
            meanwhile()
        return self.site.in_flight.get(slot, 0)


class Slots(SlotControl):
    """Slots that run or do not."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def newest(self) -> FencingToken:
        return newest_token(self.site.root)

    def ensure(self, slot: SlotName, repository: ArtifactRef, token: FencingToken) -> None:
        admit(self.site.root, token)
        if slot in self.site.running:
            if self.site.serves[slot] != repository:
                raise ConfigError(f"slot {slot} serves something else")
            return
        if not self.site.stable_starts:
            raise ConfigError("no GPU is free")
        with self.site.effect(f"start {slot}"):
            self.site.running.add(slot)
            self.site.hung |= {slot} if self.site.hung_starts else set()
            self.site.serves[slot] = repository

    def replace(self, slot: SlotName, repository: ArtifactRef, token: FencingToken) -> None:
        with self.site.effect(f"start {slot}"):
            admit(self.site.root, token)
            self.site.running.add(slot)
            self.site.hung |= {slot} if self.site.hung_starts else set()
            self.site.serves[slot] = repository

    def warm_up(self, slot: SlotName, repository: ArtifactRef) -> WarmUp:
        del slot, repository
        return WarmUp(prompts=1, answered=1, matched=1)

    def alive(self, slot: SlotName) -> bool:
        return slot in self.site.running

    def ended(self, slot: SlotName) -> bool:
        return slot in self.site.serves and slot not in self.site.running | self.site.stopped

    def served(self, slot: SlotName) -> str:
        return self.site.serves[slot].digest if slot in self.site.running else ""

    def answers(self, slot: SlotName) -> bool:
        return self.site.answers(slot)

    def in_flight(self, slot: SlotName) -> int | None:
        return self.site.in_flight.get(slot, 0)

    def engine_death(self, slot: SlotName) -> str:
        return self.site.deaths.get(slot, "")

    def stop(self, slot: SlotName, repository: ArtifactRef, token: FencingToken) -> bool:
        with self.site.effect(f"stop {slot}"):
            admit(self.site.root, token)
            if slot in self.site.running and self.site.serves[slot] != repository:
                return False
            self.site.running.discard(slot)
            self.site.hung.discard(slot)
            self.site.stopped.add(slot)
            return True


class AccessLog:
    """At each look as many requests as the weights say, the candidate's with the site's share of faults."""

    def __init__(self, site: Site) -> None:
        self.site, self.count = site, 0

    def end(self) -> LogCursor:
        return LogCursor(offset=self.count)

    def recent(self, since: float, most_bytes: int = 0) -> list[ObservedRequest]:
        del since, most_bytes
        weights = self.site.router.state.weights
        return [self._request(max(weights, key=lambda slot: weights[slot]), number) for number in range(100)]

    behind = False

    def read(self, cursor: LogCursor, most_bytes: int = 0) -> tuple[list[ObservedRequest], LogCursor]:
        del cursor, most_bytes
        if self.site.stable_ends and self.site.router.state.weights.get("green"):
            self.site.running.discard("blue")
            self.site.stable_ends = False
        weights, total = self.site.router.state.weights, self.site.requests_per_look
        if self.site.router_ended:
            return [], self.end()
        self.count += total
        requests = [
            self._request(slot, number)
            for slot, weight in weights.items()
            for number in range(round(total * weight / ALL))
        ]
        return requests, self.end()

    def _request(self, slot: SlotName, number: int) -> ObservedRequest:
        on_trial = slot == self.site.router.state.candidate
        fault = (on_trial and self.site.faulty) or slot not in self.site.running
        slow = on_trial and self.site.slow
        left = on_trial and number % 10 < 10 * self.site.abandoned
        other: SlotName = "green" if slot == "blue" else "blue"
        elsewhere = slot not in self.site.running and other in self.site.running
        waits = on_trial and number % 10 < 10 * self.site.waiting
        return ObservedRequest(
            started_at=time.time(),
            arm=slot,
            on_trial=on_trial,
            fault=fault,
            error=fault,
            lost=False,
            cancelled=left,
            in_flight=waits,
            identity=f"{self.count}-{number}" if waits else "",
            streaming=False,
            first_byte_milliseconds=None if left or waits else 5.0,
            total_milliseconds=3000.0 if left or waits else 500.0 if slow else 10.0 + number % 7,
            server=other if elsewhere else slot,
            truncated=None if left or waits or fault else False,
            repetition=0.95 if on_trial and self.site.garbled else 0.1 + number % 7 / 100,
        )


@dataclass
class Site:
    """A target with production in blue.

    Attributes:
        die_at: The controller is killed at this boundary: two of them an effect, before and after it.
        effects: What was done, in order.
        told: What the router was told.
        garbled: The candidate's answers repeat one word, at their normal length.
        abandoned: Share of the candidate's requests whose users leave after 3 s without an answer, in tenths.
        waiting: The same of those who still wait after 3 s.
        serves: What each slot's server was started with last.
        repositories: What releases other than r1 are, by release.
        freeze_at: The controller is frozen at this boundary, and `meanwhile` is done before it wakes up.
        in_drain: Done once while a controller waits for requests in flight, as if it were frozen there meanwhile.
        hung: Slots whose servers run and answer nothing.
        stopped: Slots whose servers were stopped on purpose.
        deaths: What servers' logs say of their engines' deaths, by slot.
        store_takes: The store takes what is written; otherwise its disk is full.
        in_flight: Requests in flight by slot.
        sent: Requests that users sent: a hundred at each effect, split as the router was told.
        first: What is in production where the pointers name nothing.
        lost: Those of them that met no server that answers; arms on trial fail over, others to a standby.
    """

    root: Path
    die_at: int | None = None
    dead: bool = False
    boundary: int = 0
    effects: list[str] = field(default_factory=list)
    told: list[RouteState] = field(default_factory=list)
    running: set[str] = field(default_factory=lambda: {"blue"})
    serves: dict[str, ArtifactRef] = field(default_factory=lambda: {"blue": STABLE})
    repositories: dict[str, ArtifactRef] = field(default_factory=dict)
    freeze_at: int | None = None
    meanwhile: Callable[[], object] | None = None
    in_drain: Callable[[], object] | None = None
    hung: set[str] = field(default_factory=set)
    stopped: set[str] = field(default_factory=set)
    in_flight: dict[str, int] = field(default_factory=dict)
    deaths: dict[str, str] = field(default_factory=dict)
    sent: int = 0
    lost: int = 0
    stable_ends: bool = False
    stable_starts: bool = True
    hung_starts: bool = False
    router_ended: bool = False
    router_starts: bool = True
    faulty: bool = False
    slow: bool = False
    abandoned: float = 0.0
    garbled: bool = False
    waiting: float = 0.0
    store_takes: bool = True
    requests_per_look: int = 200
    policy: dict[str, Any] = field(default_factory=lambda: dict(POLICY))
    first: Pointer | None = FIRST

    def __post_init__(self) -> None:
        self.store = Store(f"file://{self.root}/store")
        self.store.site = self
        self.router, self.log, self.slots = Router(self), AccessLog(self), Slots(self)
        self.traffic: Traffic = LoggedTraffic(self.log)  # type: ignore[arg-type] - a log in memory

    @property
    def place(self) -> ServedPlace:
        return ServedPlace(self.store, MODEL, "cpu", self.router, self.slots, PATIENCE)

    def serve_first(self) -> None:
        """The pointers say what serves; that is no effect of what is tried."""
        serve(LocalStore(self.store.uri), MODEL, "cpu", FIRST)

    @contextlib.contextmanager
    def effect(self, what: str) -> Iterator[None]:
        self._boundary()
        yield
        self.effects.append(what)
        self._users_send()
        self._boundary()

    def answers(self, slot: str) -> bool:
        return slot in self.running and slot not in self.hung

    def _users_send(self) -> None:
        state = self.router.state
        somebody = any(self.answers(slot) for slot in ("blue", "green"))
        for slot, weight in state.weights.items():
            requests = weight * 100 // ALL
            stands_by = state.standby is not None and self.answers(state.standby)
            failed_over = (state.candidate is not None and somebody) or stands_by
            self.sent += requests
            self.lost += 0 if self.answers(slot) or failed_over else requests

    def _boundary(self) -> None:
        self.boundary += 1
        if self.boundary == self.die_at:
            self.dead = True
        if self.boundary == self.freeze_at and self.meanwhile is not None:
            self.meanwhile()
        if self.dead:
            raise Killed

    def step(self, percent: float, *, release: str = "r1", run: str = "run") -> Judgement:
        """One stage of the canary, by a controller of its own."""
        production = read_place(self.store, "cpu").production or self.first
        plan = CanaryPlan(
            release_id=release,
            run=run,
            target="cpu",
            candidate=self.repositories.get(release, CANDIDATE),
            production=production,
            policy=CanaryPolicy.model_validate(self.policy),
            patience=PATIENCE,
        )
        journal = CanaryJournal(self.store, release, "cpu")
        with Lease(self.store, lease_name("cpu")) as lease:
            controller = CanaryController(
                plan, journal=journal, lease=lease, router=self.router, traffic=self.traffic, slots=self.slots
            )
            return controller.run_step(percent)

    def at_looks(self, acts: Mapping[int, Callable[[], object]]) -> list[int]:
        """Do something at some of the looks to come, counted from 1; returns a list with an entry for each look."""
        read, looks = self.log.read, list[int]()

        def counted(cursor: LogCursor, most_bytes: int = 0) -> tuple[list[ObservedRequest], LogCursor]:
            looks.append(len(looks) + 1)
            acts.get(looks[-1], lambda: None)()
            return read(cursor, most_bytes)

        self.log.read = counted  # type: ignore[method-assign]
        return looks

    def steps(self, *percents: float, **settings: str) -> list[str]:
        """Verdicts of the steps, until one is not GO."""
        verdicts: list[str] = []
        for percent in percents:
            verdicts.append(self.step(percent, **settings).verdict.value)
            if verdicts[-1] != "GO":
                break
        return verdicts

    def buried(self) -> Site:
        """The killed controller's machine is gone: whoever comes next can work."""
        self.die_at, self.dead = None, False
        take_over(self.store, "cpu")
        return self

    def record(self, release: str = "r1") -> CanaryRecord:
        record = read_canary_record(self.store, release, "cpu")
        assert record is not None
        return record

    def weights(self) -> dict[str, int]:
        return {slot: weight for slot, weight in self.router.state.weights.items() if weight}

    def kinds(self, release: str = "r1") -> list[str]:
        return [event.kind.value for event in self.record(release).events]


def repository(release: str) -> ArtifactRef:
    return STABLE if release == "r0" else ArtifactRef(kind="model_repository", digest=release[-1] * 64)


class Served(Site):
    """A site whose production is what its pointers say; r0 is, in blue."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.policy["steps_percent"] = [50, 100]
        self.repositories = {f"r{number}": repository(f"r{number}") for number in range(1, 6)}
        self.serve_first()

    def settle(self, release: str, model: str = MODEL) -> PlaceState:
        resolve(self.store, release, model=model)
        return promote(
            self.store, "cpu", model_id=model, release_id=release, repository=repository(release), recipe="none",
            find_router=lambda _: self.router, patience=PATIENCE,
        )  # fmt: skip

    def release(self, release: str) -> None:
        assert self.steps(50, 100, release=release) == ["GO"] * 2
        self.settle(release)

    def roll_back(self, leaving: str = "") -> None:
        roll_back(self.place, by="anna: it answers nonsense", leaving=leaving)

    @property
    def pointers(self) -> PlaceState:
        return read_place(self.store, "cpu")

    def serving(self) -> str:
        """The release that users get, once everything says so."""
        last = read_place(self.store, "cpu").on_trial
        record = read_canary_record(self.store, last, "cpu") if last else None
        served = {slot: self.serves[slot].digest if slot in self.running else None for slot in ("blue", "green")}
        assert list(disagreements(self.pointers, record, self.router.state, served)) == [], self.effects
        assert self.pointers.production is not None
        (slot,) = self.weights()
        assert slot == self.pointers.production.slot
        return self.pointers.production.release_id


def guard(site: Site, after: float = 0.0, clock_is_off: float = 0.0) -> list[GuardAction]:
    """One pass on the guard's host after so many seconds; its clock may be wrong."""
    return Guard(site.place, watch_seconds=0.5).guard(time.time() + after + clock_is_off)


class Counts:
    """Two hundred requests a window, as the weights are."""

    def __init__(self, site: Site) -> None:
        self.site, self.trouble = site, None
        self.trouble: SourceDown | None = None

    def begin(self, seconds_ago: float = 0.0) -> float:
        return time.time() - seconds_ago

    def window(self, since: float) -> MetricsWindow:
        del since
        if self.trouble is not None:
            raise self.trouble
        arms: dict[SlotName, ArmWindow] = {
            slot: self._arm(slot, 200 * weight // ALL) for slot, weight in self.site.router.state.weights.items()
        }
        return arms, time.time()

    def _arm(self, slot: SlotName, requests: int) -> ArmWindow:
        errors = requests if slot == "green" and self.site.faulty else 0
        fast = Histogram(edges=(10.0, 20.0, 50.0, 100.0, 500.0), counts=(requests,) * 5, total=requests)
        return ArmWindow(requests=requests, errors=errors, end_to_end=fast)
