"""Releases, one after the other, while everything breaks: do users lose requests, and does all agree in the end?

    make bench-canary-chaos
    python benchmarks/canary_chaos.py --minutes 30 --seed 7

Real Triton servers (a model of words), real Envoy, users at a steady rate. A driver takes release after release
through canary, settlement and teardown, each stage a process, and tries again what was killed, as Airflow does. Beside
it, drawn from the seed: stages killed or frozen longer than their lease, servers killed or frozen, Envoy killed, the
store's disk full, people who ask for a rollback, hostile clients. The guard passes every few seconds. At the end
pointers, record, router and slots must agree, and no unary request may have been lost but in moments without a fit
server, or without Envoy. Fit is a ready server that has traffic, or serves what the pointers call production or the
version before, or is a candidate whose canary goes on, once it was ready for long enough to be warmed up and to stand
by: only one that was taken back answers no user on purpose.

One line a goal; exit code 1 when one is missed. It uses the ports from 18540 on. A full disk needs root (tmpfs).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from goals import at_least, goal

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "canary"))

import hostile_client
from arriving_users import ArrivingUsers, IncompleteAnswer, serve
from production_site import MODEL, Production

from llm_pipeline.adapters.envoy.process import find_router
from llm_pipeline.adapters.envoy.router import RouterFiles
from llm_pipeline.base import detached
from llm_pipeline.base.bounded_http import call
from llm_pipeline.base.errors import ExitCode, PipelineError
from llm_pipeline.canary.record import Phase, current_canary, read_canary_record
from llm_pipeline.canary.router import RouterUnavailable
from llm_pipeline.operations.guard import guard_once
from llm_pipeline.operations.status import look_at
from llm_pipeline.release.contract import StageRequest
from llm_pipeline.serving.triton_server import find_server
from llm_pipeline.store.pointers import read_pointers
from llm_pipeline.store.references import PlacedPointers

RATE = 20.0
CALM_SECONDS = 240.0
TRIES = 4
ROLLED_BACK_BY_HAND = 0.2
LEAST_EVENTS_A_MINUTE = 3.0
ANSWER_SECONDS = 60.0
SHARES = {"unary": 0.8, "stream": 0.2}
TOKENS = 4
RECORD_SECONDS = 0.5

STORE_MIB = 96
_PAUSE_SECONDS = (3.0, 12.0)
_BEGAN = time.monotonic()
_LOOK_SECONDS = 0.25
_GUARD_SECONDS = 4.0
_SLACK_SECONDS = 1.0
_WARMED_UP_SECONDS = 10.0


class Users(ArrivingUsers):
    """Unary requests and streams over HTTP, each over a connection of its own."""

    def __init__(self, port: int, rate: float) -> None:
        super().__init__(rate, SHARES, answer_seconds=ANSWER_SECONDS, keep_alive=False)
        self._url = f"http://127.0.0.1:{port}/v2/models/llm"
        self.asks = {"unary": self._unary, "stream": self._stream}

    async def _unary(self) -> str:
        async with self.session.post(f"{self._url}/generate", json=_body()) as response:
            text = await response.text()
            if response.status != 200 or " a b" not in text:
                raise IncompleteAnswer(f"{response.status} {text}")
            return ""

    async def _stream(self) -> str:
        async with self.session.post(f"{self._url}/generate_stream", json={**_body(), "stream": True}) as response:
            chunks = [line async for line in response.content if line.startswith(b"data:")]
            if response.status != 200 or not chunks:
                raise IncompleteAnswer(f"{response.status}, {len(chunks)} chunks")
            return ""


def _body() -> dict[str, object]:
    return {"text_input": "a b", "max_tokens": TOKENS}


@dataclass
class Moments:
    """When users had nobody to ask, as (begin, end), seconds of the monotonic clock."""

    without_server: list[tuple[float, float]] = field(default_factory=list)
    without_fit_server: list[tuple[float, float]] = field(default_factory=list)
    without_router: list[tuple[float, float]] = field(default_factory=list)

    def excuse(self, failure: dict[str, Any]) -> str:
        """Why a request was lost, as far as nobody could answer it; empty where somebody could have."""
        for name, moments in vars(self).items():
            begin, end = failure["sent_at"] - _SLACK_SECONDS, failure["failed_at"] + _SLACK_SECONDS
            if any(since <= end and until >= begin for since, until in moments):
                return name.replace("_", " ")
        return ""


class Faults:
    """A site, and what is done to it."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.draw = random.Random(seed)  # noqa: S311 - a schedule, no secret
        self.full_disks = _mount(root / "store")
        self.site = Production(root)
        self.events: Counter[str] = Counter()
        self.stop = threading.Event()
        self._stage: subprocess.Popen[bytes] | None = None
        self._deployment = root / "deployment.yaml"
        self._deployment.write_text(yaml.safe_dump(self.site.deployment.model_dump(mode="json", exclude_none=True)))

    def break_things(self) -> None:
        """One thing after the other, until it is stopped."""
        acts: list[Callable[[], None]] = [
            self.kill_stage, self.freeze_stage, self.kill_server, self.kill_server, self.freeze_server,
            self.kill_router, self.be_hostile, self.roll_back_by_hand,
        ]  # fmt: skip
        acts += [self.fill_disk] if self.full_disks else []
        while not self.stop.wait(self.draw.uniform(*_PAUSE_SECONDS)):
            act = self.draw.choice(acts)
            try:
                act()
            except (OSError, PipelineError, subprocess.SubprocessError) as error:
                say(f"{act.__name__} failed: {error}")

    def kill_stage(self) -> None:
        """As the kernel does when memory is short."""
        if self._signal_stage(signal.SIGKILL):
            self._note("stage killed")

    def freeze_stage(self) -> None:
        """Longer than a lease lasts, sometimes."""
        if stage := self._signal_stage(signal.SIGSTOP):
            self._note("stage frozen")
            self.stop.wait(self.draw.uniform(3, 35))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(stage, signal.SIGCONT)

    def kill_server(self) -> None:
        """Candidate's or production's."""
        if process := self._server():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
                self._note("server killed")
                say(f"  {process.name}, while traffic goes {self._traffic()}")

    def freeze_server(self) -> None:
        """For a moment: requests hang and go on."""
        if process := self._server():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGSTOP)
                self._note("server frozen")
                self.stop.wait(self.draw.uniform(0.5, 4))
                os.killpg(process.pid, signal.SIGCONT)

    def kill_router(self) -> None:
        """Everything in flight is lost; somebody has to start it anew."""
        if process := detached.load(RouterFiles(self.site.state("router")).record):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
                self._note("Envoy killed")

    def be_hostile(self) -> None:
        """What a user tries at the users' port."""
        self._note("hostile client")
        port = self.site.router_port
        for path in ("/v2/repository/models/llm/unload", "/v2/logging", "/v2/repository/index", "//v2/models/llm%2f.."):
            with contextlib.suppress(OSError, ValueError):
                hostile_client.ask(port, "POST", path, b"{}")
        for _ in range(30):
            with contextlib.suppress(OSError, ValueError):
                hostile_client.ask(port, "POST", "/v2/models/llm/generate", b'{"text_input": "", "max_tokens": -1}')

    def fill_disk(self) -> None:
        """The store takes nothing for some seconds."""
        filler = self.root / "store" / "filler"
        self._note("store's disk full")
        with contextlib.suppress(OSError), filler.open("wb") as stream:
            while True:
                stream.write(bytes(1024 * 1024))
                stream.flush()
        self.stop.wait(self.draw.uniform(3, 8))
        filler.unlink(missing_ok=True)

    def roll_back_by_hand(self) -> None:
        """As a person types it."""
        self._note("rollback by hand")
        command = [sys.executable, "-m", "llm_pipeline", "rollback", MODEL, "cpu", "-d", str(self._deployment)]
        subprocess.run(command, check=False, capture_output=True, timeout=120)

    def _traffic(self) -> str:
        router = find_router(self.site.state("router"))
        with contextlib.suppress(RouterUnavailable):
            if router is not None:
                state = router.read()[0]
                return f"{dict(state.weights)}, on trial: {state.candidate}"
        return "nowhere"

    def _server(self) -> detached.DetachedProcess | None:
        found = [detached.load(self.site.state(slot) / "process.json") for slot in ("blue", "green")]
        alive = [process for process in found if process is not None and process.alive]
        return self.draw.choice(alive) if alive else None

    def _signal_stage(self, number: signal.Signals) -> int:
        stage = self._stage
        if stage is None or stage.poll() is not None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            os.killpg(stage.pid, number)
            return stage.pid
        return 0

    def _note(self, event: str) -> None:
        self.events[event] += 1
        say(event)


def say(event: str) -> None:
    """Tell it with the time."""
    print(f"{since_beginning(time.monotonic())} {event}", flush=True)


def since_beginning(at: float) -> str:
    """Minutes and seconds since the run began."""
    return "{:.0f}:{:04.1f}".format(*divmod(at - _BEGAN, 60))


def _mount(store: Path) -> bool:
    """Whether the store has a small disk of its own now, which can be filled."""
    store.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={STORE_MIB}m", "tmpfs", str(store)]
    return os.getuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0


class Chaos(Faults):
    """One run: the site, what is done to it, and what was seen."""

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, seed)
        self.moments = Moments()
        self.releases: Counter[str] = Counter()
        self.calm = threading.Event()
        self._known_fit: set[str] = set()
        self._ready_since: dict[str, float] = {}

    # the driver: what Airflow does

    def drive(self) -> None:
        """Take release after release through, until it is stopped."""
        number = 1
        while not self.stop.is_set():
            number += 1
            release = f"r{number}"
            try:
                if release not in self.site.repositories:
                    self.site.repositories[release] = self.site.publish(release)
            except (OSError, PipelineError):
                time.sleep(1)
                number -= 1
                continue
            self.releases[self._release(release)] += 1
            if self.draw.random() < ROLLED_BACK_BY_HAND:
                self.roll_back_by_hand()

    def _release(self, release: str) -> str:
        """Its end in a word; the teardown runs in any case."""
        try:
            for percent in (50, 100):
                code = self._run(self.site.canary_request(release, percent, run=release))
                if code != ExitCode.GO:
                    return f"ended with {code} at {percent} %"
            return "settled" if self._run(self.site.settle_request(release)) == ExitCode.GO else "not settled"
        finally:
            self._run(self.site.rollback_request(release))

    def _run(self, request: StageRequest) -> int:
        """A stage as a process, tried again while it is killed or fails for reasons that pass."""
        code = -1
        for attempt in range(TRIES):
            paths = [self.root / f"{request.release_id}-{request.stage}.{kind}" for kind in ("json", "result", "log")]
            paths[0].write_text(request.model_dump_json())
            command = [sys.executable, "-m", "llm_pipeline", "stage", "run", request.stage, "--request", paths[0]]
            command += ["--result", paths[1], "--log", paths[2]]
            self._stage = subprocess.Popen(command, start_new_session=True)
            code = self._stage.wait()
            if 0 <= code < ExitCode.INFRASTRUCTURE:
                return code
            time.sleep(min(1.0 + attempt, 5.0))
        return code

    # what is watched

    def watch(self) -> None:
        """Note when no fit server, or no Envoy, could answer."""
        since, looked_at, pid = dict.fromkeys(vars(self.moments), 0.0), time.monotonic(), None
        while not self.calm.wait(_LOOK_SECONDS):
            now, ready = time.monotonic(), {slot for slot in ("blue", "green") if self._ready(slot)}
            self._ready_since = {slot: self._ready_since.get(slot, now) for slot in ready}
            router = detached.load(RouterFiles(self.site.state("router")).record)
            if router is not None and pid not in (None, router.pid):  # another one: it was gone since the last look
                self.moments.without_router.append((looked_at, time.monotonic()))
            looked_at, pid = now, router.pid if router is not None else pid
            gone = {
                "without_server": not ready,
                "without_fit_server": not ready & self._fit(),
                "without_router": router is None or not router.alive,
            }
            since = {name: _moment(getattr(self.moments, name), since[name], now, gone=gone[name]) for name in gone}
        for name, begun in since.items():
            _moment(getattr(self.moments, name), begun, time.monotonic(), gone=False)

    def guard(self) -> None:
        """Pass after pass, also while it calms down."""
        while not self.calm.wait(_GUARD_SECONDS):
            for action in guard_once(self.site.store, self.site.deployment):
                say(f"guard: {action.release_id} {action.what}: {action.detail}"[:200])

    def disagreements(self) -> list[str]:
        """What does not fit together now."""
        pointers = read_pointers(self.site.store, MODEL, "cpu")[0]
        placed = PlacedPointers(model_id=MODEL, target="cpu", pointers=pointers)
        return [*look_at(self.site.store, self.site.deployment, "cpu", [placed]).problems]

    def _fit(self) -> set[str]:
        """Slots whose servers may answer users."""
        with contextlib.suppress(PipelineError):  # a full disk is not read either, sometimes: it is as it was
            pointers = self.site.pointers()
            served = {one.repository.digest for one in (pointers.production, pointers.previous) if one is not None}
            servers = {slot: find_server(self.site.state(slot)) for slot in ("blue", "green")}
            known = {slot for slot, server in servers.items() if server is not None and server.digest in served}
            self._known_fit = known | self._with_traffic() | self._on_trial()
        return self._known_fit

    def _on_trial(self) -> set[str]:
        """The candidate's slot while its canary goes on, once it had the time to be warmed up."""
        release = current_canary(self.site.store, "cpu")
        record = read_canary_record(self.site.store, release, "cpu") if release else None
        if record is None or record.settled or record.phase in (Phase.PENDING, Phase.ROLLING_BACK):
            return set()
        since = self._ready_since.get(record.candidate, time.monotonic())
        return {record.candidate} if time.monotonic() - since >= _WARMED_UP_SECONDS else set()

    def _with_traffic(self) -> set[str]:
        router = find_router(self.site.state("router"))
        return {slot for slot, weight in router.read()[0].weights.items() if weight} if router is not None else set()

    def _ready(self, slot: str) -> bool:
        port = getattr(self.site.deployment.places["cpu"], slot).http
        try:
            return call(f"http://127.0.0.1:{port}/v2/models/llm/ready", seconds=1.0).status == 200
        except OSError:
            return False


def main() -> int:
    """Run, calm down, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        chaos = Chaos(Path(name), options.seed)
        try:
            return _run(chaos, options.minutes, options.seed)
        finally:
            chaos.site.down()
            if chaos.full_disks:
                subprocess.run(["umount", str(chaos.root / "store")], check=True)


def _run(chaos: Chaos, minutes: float, seed: int) -> int:
    chaos.site.policy |= {"slow_ratio": 6.0, "unwatched_seconds": 20.0}
    chaos.site.deploy_first()
    users = detached.start(
        "users",
        [sys.executable, __file__, "users", str(chaos.site.router_port), str(chaos.root / "traffic.json")],
        chaos.root / "users.json",
        log=chaos.root / "users.log",
    )
    with _threads(chaos.watch, chaos.guard) as ended:
        with _threads(chaos.drive, chaos.break_things) as stopped:
            time.sleep(minutes * 60)
            chaos.stop.set()
            stopped()
        left = _calmed(chaos)
        detached.stop(users, grace_seconds=90)
        chaos.calm.set()
        ended()
    traffic = json.loads((chaos.root / "traffic.json").read_text())
    return _judge(chaos, traffic, left, minutes, seed)


def _calmed(chaos: Chaos) -> list[str]:
    """Disagreements that are left when nothing breaks any more and the guard had its time."""
    deadline, left = time.monotonic() + CALM_SECONDS, ["never looked"]
    while time.monotonic() < deadline:
        left = chaos.disagreements()
        if not left:
            time.sleep(2 * _GUARD_SECONDS)
            if not (left := chaos.disagreements()):
                return []
        time.sleep(1)
    return left


def _judge(chaos: Chaos, traffic: dict[str, Any], left: list[str], minutes: float, seed: int) -> int:
    lost: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for failure in traffic["failures"]:
        excuse = chaos.moments.excuse(failure)
        lost[f"{failure['kind']}, {excuse or 'somebody could have answered'}"] += 1
        if not excuse and failure["kind"] == "unary":
            reasons[failure["reason"]] += 1
            lasted = failure["failed_at"] - failure["sent_at"]
            print(f"lost: {lasted:.1f} s, ended at {since_beginning(failure['failed_at'])}: {failure['reason']}")
    seconds = {name: sum(until - since for since, until in moments) for name, moments in vars(chaos.moments).items()}
    print(f"seed {seed}, {minutes:g} minutes; releases: {dict(chaos.releases)}; events: {dict(chaos.events)}")
    print(f"sent {traffic['sent']}, answered {traffic['answered']}, lost {dict(lost)}; seconds {seconds}")
    for sentence in left:
        print(f"disagreement: {sentence}")
    unary = sum(reasons.values())
    met = [
        goal("chaos_agreement", f"{len(left)} disagreements", "0", met=not left),
        goal("chaos_lost_unary", f"{unary} of {traffic['sent'].get('unary', 0)}", "0", met=unary == 0),
        at_least("chaos_events", sum(chaos.events.values()) / minutes, LEAST_EVENTS_A_MINUTE, "a minute"),
        at_least("chaos_settled", chaos.releases["settled"], 1, "releases"),
    ]
    return 0 if all(met) else 1


@contextlib.contextmanager
def _threads(*functions: Callable[[], None]) -> Iterator[Callable[[], None]]:
    threads = [threading.Thread(target=function, name=function.__name__, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    yield lambda: [thread.join() for thread in threads] and None


def _moment(moments: list[tuple[float, float]], since: float, now: float, *, gone: bool) -> float:
    """When the moment began that lasts now; 0 while there is none. One that ended is noted."""
    if gone:
        return since or now
    if since:
        moments.append((since, now))
    return 0.0


if __name__ == "__main__":
    if sys.argv[1:2] == ["users"]:  # a process of their own: PORT RECORD
        asyncio.run(serve(Users(int(sys.argv[2]), RATE), Path(sys.argv[3]), record_seconds=RECORD_SECONDS))
    else:
        sys.exit(main())
