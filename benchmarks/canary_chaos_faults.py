"""What breaks in a chaos run, drawn from its seed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import hostile_client
import yaml
from production_site import MODEL, Production

from llm_pipeline.adapters.envoy.process import find_router
from llm_pipeline.adapters.envoy.router import RouterFiles
from llm_pipeline.base import detached
from llm_pipeline.base.errors import PipelineError
from llm_pipeline.canary.router import RouterUnavailable

STORE_MIB = 96

_PAUSE_SECONDS = (3.0, 12.0)
_BEGAN = time.monotonic()


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
