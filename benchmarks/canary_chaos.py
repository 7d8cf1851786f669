"""Releases, one after the other, while everything breaks: do users lose requests, and does all agree in the end?

    make bench-canary-chaos
    python benchmarks/canary_chaos.py --minutes 30 --seed 7

Real Triton servers (a model of words), real Envoy, users at a steady rate. A driver takes release after release
through canary, settlement and teardown, each stage a process, and tries again what was killed, as Airflow does. Beside
it, drawn from the seed: stages killed or frozen longer than their lease, servers killed or frozen, Envoy killed, the
people who ask for a rollback. The guard passes every few seconds. At the end
pointers, record, router and slots must agree, and no request may have been lost but in moments without a fit server,
or without Envoy. Fit is a ready server that has traffic, or serves what the pointers call production or the version
before, or is a candidate whose canary goes on, once it was ready for long enough to be warmed up and to stand by: only
one that was taken back answers no user on purpose.

One line a goal; exit code 1 when one is missed. It uses the ports from 18540 on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from goals import at_least, at_most

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "canary"))

from arriving_users import ArrivingUsers, IncompleteAnswer, serve
from production_site import MODEL, Production

from llm_pipeline.adapters.envoy.router import RouterFiles, router_of
from llm_pipeline.base import detached
from llm_pipeline.base.bounded_http import call
from llm_pipeline.base.errors import ExitCode, PipelineError
from llm_pipeline.canary.record import Phase, read_canary_record
from llm_pipeline.operations.guard import guard_once
from llm_pipeline.operations.status import deployment_status
from llm_pipeline.release.contract import StageRequest
from llm_pipeline.serving.triton_server import find_server
from llm_pipeline.store.place_state import read_place

RATE, ANSWER_SECONDS, RECORD_SECONDS = 20.0, 60.0, 0.5
CALM_SECONDS = 240.0
TRIES = 4
ROLLED_BACK_BY_HAND = 0.2
LEAST_EVENTS_A_MINUTE = 3.0
SLOTS = ("blue", "green")
_PAUSE_SECONDS = (3.0, 12.0)
_LOOK_SECONDS, _GUARD_SECONDS = 0.25, 4.0
_SLACK_SECONDS = 1.0
_WARMED_UP_SECONDS = 10.0
_BEGAN = time.monotonic()


class Users(ArrivingUsers):
    """Unary requests over HTTP, each over a connection of its own."""

    def __init__(self, port: int) -> None:
        super().__init__(RATE, {"unary": 1.0}, answer_seconds=ANSWER_SECONDS, keep_alive=False)
        self._url = f"http://127.0.0.1:{port}/v1/completions"
        self.asks = {"unary": self._unary}

    async def _unary(self) -> str:
        async with self.session.post(self._url, json={"prompt": "a b", "max_tokens": 4, "temperature": 0}) as response:
            text = await response.text()
            if response.status != 200 or " a b" not in text:
                raise IncompleteAnswer(f"{response.status} {text}")
            return ""


class Chaos:
    """One run: the site, what is done to it, and what was seen.

    Attributes:
        moments: When users had nobody to ask: what was gone, since when and until when, by the monotonic clock.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.draw = random.Random(seed)  # noqa: S311 - a schedule, no secret
        self.site = Production(root)
        self.events: Counter[str] = Counter()
        self.releases: Counter[str] = Counter()
        self.moments: list[tuple[str, float, float]] = []
        self.stop, self.calm = threading.Event(), threading.Event()
        self._stage: subprocess.Popen[bytes] | None = None
        self._ready_since: dict[str, float] = {}

    # what breaks

    def break_things(self) -> None:
        """One thing after the other, until it is stopped."""
        acts = [
            self.kill_stage, self.freeze_stage, self.kill_server, self.kill_server, self.freeze_server,
            self.kill_router, self.roll_back_by_hand,
        ]  # fmt: skip
        while not self.stop.wait(self.draw.uniform(*_PAUSE_SECONDS)):
            act = self.draw.choice(acts)
            try:
                act()
            except ProcessLookupError:
                continue
            except (OSError, PipelineError, subprocess.SubprocessError) as error:
                say(f"{act.__name__} failed: {error}")

    def kill_stage(self) -> None:
        """As the kernel does when memory is short."""
        if (stage := self._stage) and stage.poll() is None:
            os.killpg(stage.pid, signal.SIGKILL)
            self._note("stage killed")

    def freeze_stage(self) -> None:
        """Longer than a lease lasts, sometimes."""
        if (stage := self._stage) and stage.poll() is None:
            self._freeze("stage", stage.pid, (3, 35))

    def kill_server(self) -> None:
        """Candidate's or production's."""
        if server := self._server():
            os.kill(server.pid, signal.SIGKILL)
            self._note(f"server killed ({server.name})")

    def freeze_server(self) -> None:
        """For a moment: requests hang and go on."""
        if server := self._server():
            self._freeze("server", server.pid, (0.5, 4))

    def kill_router(self) -> None:
        """Everything in flight is lost; somebody has to start it anew."""
        if router := detached.load(RouterFiles(self.site.state("router")).record):
            os.kill(router.pid, signal.SIGKILL)
            self._note("Envoy killed")

    def roll_back_by_hand(self) -> None:
        """As a person types it."""
        self._note("rollback by hand")
        command = [sys.executable, "-m", "llm_pipeline", "rollback", MODEL, "cpu", "-d", self.site.deployment_file()]
        subprocess.run(command, check=False, capture_output=True, timeout=120)

    def _freeze(self, what: str, group: int, seconds: tuple[float, float]) -> None:
        os.killpg(group, signal.SIGSTOP)
        self._note(f"{what} frozen")
        self.stop.wait(self.draw.uniform(*seconds))
        os.killpg(group, signal.SIGCONT)

    def _server(self) -> detached.DetachedProcess | None:
        found = [detached.load(self.site.state(slot) / "process.json") for slot in SLOTS]
        alive = [process for process in found if process is not None and process.alive]
        return self.draw.choice(alive) if alive else None

    def _note(self, event: str) -> None:
        self.events[event] += 1
        say(event)

    # the driver: what Airflow does

    def drive(self) -> None:
        """Take release after release through, until it is stopped."""
        number = 0
        while not self.stop.is_set():
            number += 1
            release = f"chaos{number}"
            self.site.repositories[release] = self.site.publish(release)
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
        kinds = ("request", "result", "log")
        code, paths = -1, {kind: self.root / f"{request.release_id}-{request.stage}.{kind}" for kind in kinds}
        for attempt in range(TRIES):
            paths["request"].write_text(request.model_dump_json())
            command = [sys.executable, "-m", "llm_pipeline.stages", request.stage]
            command += [word for kind, path in paths.items() for word in (f"--{kind}", str(path))]
            self._stage = subprocess.Popen(command, start_new_session=True)
            code = self._stage.wait()
            if 0 <= code < ExitCode.INFRASTRUCTURE:
                break
            time.sleep(1.0 + attempt)
        return code

    # what is watched

    def guard(self) -> None:
        """Pass after pass, also while it calms down."""
        while not self.calm.wait(_GUARD_SECONDS):
            for action in guard_once(self.site.store, self.site.deployment):
                say(f"guard: {action.release_id} {action.what}: {action.detail}"[:200])

    def watch(self) -> None:
        """Note when no fit server, or no Envoy, could answer."""
        looked_at, pid, before = time.monotonic(), 0, set[str]()
        while not self.calm.wait(_LOOK_SECONDS):
            gone = set() if self._fit_servers() else {"no fit server"}
            router = detached.load(RouterFiles(self.site.state("router")).record)
            if router is None or pid not in (0, router.pid) or not self._listens():  # another one: it was gone
                gone.add("no Envoy")
            now = time.monotonic()
            self.moments += [(name, looked_at, now) for name in gone | before]
            looked_at, before, pid = now, gone, router.pid if router else pid

    def excuse(self, failure: dict[str, float]) -> str:
        """Why nobody could answer a request that was lost; empty where somebody could have."""
        begin, end = failure["sent_at"] - _SLACK_SECONDS, failure["failed_at"] + _SLACK_SECONDS
        return next((name for name, since, until in self.moments if since <= end and until >= begin), "")

    def disagreements(self) -> list[str]:
        """What does not fit together now."""
        return [*deployment_status(self.site.store, self.site.deployment).places[0].problems]

    def _fit_servers(self) -> set[str]:
        """Slots whose servers are ready and may answer users."""
        now, ready = time.monotonic(), {slot for slot in SLOTS if self._ready(slot)}
        self._ready_since = {slot: self._ready_since.get(slot, now) for slot in ready}
        pointers, fit = self.site.pointers(), set[str]()
        served = {one.repository.digest for one in (pointers.production, pointers.previous) if one is not None}
        servers = {slot: find_server(self.site.state(slot)) for slot in SLOTS}
        fit |= {slot for slot, server in servers.items() if server is not None and server.digest in served}
        if (router := router_of(self.site.state("router"))) is not None:
            fit |= {slot for slot, weight in router.read()[0].weights.items() if weight}
        release = read_place(self.site.store, "cpu").on_trial
        record = read_canary_record(self.site.store, release, "cpu") if release else None
        if record and not record.settled and record.phase not in (Phase.PENDING, Phase.ROLLING_BACK):
            warm = now - self._ready_since.get(record.candidate, now) >= _WARMED_UP_SECONDS
            fit |= {record.candidate} if warm else set()
        return ready & fit

    def _listens(self) -> bool:
        """Whether Envoy takes connections: one that has just been started does not yet."""
        router = self.site.deployment.places["cpu"].router
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", router.port), timeout=1.0):
            return True
        return False

    def _ready(self, slot: str) -> bool:
        """Where users are answered: the process in front of Triton starts after it."""
        port = getattr(self.site.deployment.places["cpu"], slot).openai
        with contextlib.suppress(OSError):
            return call(f"http://127.0.0.1:{port}/health", seconds=1.0).status == 200
        return False


def say(event: str) -> None:
    """Tell it with the time since the run began."""
    print("{:.0f}:{:04.1f}".format(*divmod(time.monotonic() - _BEGAN, 60)), event, flush=True)


def main() -> int:
    """Run, calm down, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        chaos = Chaos(Path(name), options.seed)
        try:
            left = _run(chaos, options.minutes)
            print(f"seed {options.seed}, {options.minutes:g} minutes")
            return 0 if _judged(chaos, left, options.minutes) else 1
        finally:
            chaos.site.down()


def _run(chaos: Chaos, minutes: float) -> list[str]:
    """Disagreements that are left when nothing breaks any more and the guard had its time."""
    chaos.site.policy |= {"slow_ratio": 6.0, "unwatched_seconds": 20.0}
    chaos.site.deploy_first()
    command = [sys.executable, __file__, "users", str(chaos.site.router_port), str(chaos.root / "traffic.json")]
    users = detached.start("users", command, chaos.root / "users.json", log=chaos.root / "users.log")
    watching = [threading.Thread(target=function, daemon=True) for function in (chaos.watch, chaos.guard)]
    acting = [threading.Thread(target=function, daemon=True) for function in (chaos.drive, chaos.break_things)]
    for thread in watching + acting:
        thread.start()
    time.sleep(minutes * 60)
    chaos.stop.set()
    for thread in acting:
        thread.join()
    deadline, agreed_since = time.monotonic() + CALM_SECONDS, time.monotonic()
    while (left := chaos.disagreements()) or time.monotonic() - agreed_since < 2 * _GUARD_SECONDS:
        agreed_since = time.monotonic() if left else agreed_since
        if time.monotonic() > deadline:
            break
        time.sleep(1)
    detached.stop(users, grace_seconds=90)
    chaos.calm.set()
    for thread in watching:
        thread.join()
    return left


def _judged(chaos: Chaos, left: list[str], minutes: float) -> bool:
    traffic = json.loads((chaos.root / "traffic.json").read_text())
    lost = Counter(chaos.excuse(failure) or failure["reason"] for failure in traffic["failures"])
    seconds: Counter[str] = Counter()
    for name, since, until in chaos.moments:
        seconds[name] += round(until - since, 2)
    print(f"releases: {dict(chaos.releases)}; events: {dict(chaos.events)}; seconds: {dict(seconds)}")
    print(f"sent {traffic['sent']}, answered {traffic['answered']}, lost {dict(lost)}")
    print("".join(f"disagreement: {sentence}\n" for sentence in left), end="")
    unexcused = sum(number for reason, number in lost.items() if reason not in seconds)
    met = [
        at_most("chaos_agreement", len(left), 0, "disagreements"),
        at_most("chaos_lost_unary", unexcused, 0),
        at_least("chaos_events", chaos.events.total() / minutes, LEAST_EVENTS_A_MINUTE, "a minute"),
        at_least("chaos_settled", chaos.releases["settled"], 1, "releases"),
    ]
    return all(met)


if __name__ == "__main__":
    if sys.argv[1:2] == ["users"]:  # a process of their own: PORT RECORD
        asyncio.run(serve(Users(int(sys.argv[2])), Path(sys.argv[3]), record_seconds=RECORD_SECONDS))
    else:
        sys.exit(main())
