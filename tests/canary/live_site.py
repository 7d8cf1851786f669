"""A site with users of all kinds that stays up for a file of scenarios; its canaries are driven in this process."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from canary_site import CANDIDATE, STABLE, Site
from http_slots import HttpSlots

from llm_pipeline.base import detached
from llm_pipeline.base.verdict import Judgement
from llm_pipeline.canary.access_log import AccessLog
from llm_pipeline.canary.controller import CanaryController, LoggedTraffic, Traffic
from llm_pipeline.canary.record import CanaryJournal, CanaryPlan, CanaryRecord, Phase, lease_name, read_canary_record
from llm_pipeline.canary.router import ALL, Patience, SlotName, TrafficRouter, all_to, other_slot
from llm_pipeline.canary.slots import ServedPlace
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.operations.rollback import ensure_rolled_back
from llm_pipeline.store.lease import Lease
from llm_pipeline.store.place_state import Pointer

USERS = Path(__file__).with_name("mixed_users.py")
RATE = 100.0
SHORT = Patience(write=3, confirm=2, blind_drain=0.3)
QUICK = {
    "steps_percent": (1.0, 5.0, 25.0, 50.0, 100.0),
    "minimum_bake_seconds": 0.6,
    "maximum_bake_seconds": 20.0,
    "minimum_requests": 4,
    "look_seconds": 0.1,
    "slow_ratio": 3.0,
    "on_undecided": "roll_back",
    "drain_seconds": 1.0,
}


class LiveSite(Site):
    """Two slots, Envoy, and users that send unary and streaming requests over HTTP and gRPC all the time."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.control = HttpSlots(root, self.slots, grpc=True)
        self.stable: SlotName = "blue"
        self.trials = 0

    def mixed_users(self, rate: float = RATE) -> None:
        (self.root / "traffic.json").unlink(missing_ok=True)
        command = [sys.executable, str(USERS), str(self.place.port), str(rate), str(self.root / "traffic.json")]
        users = detached.start("users", command, self.root / "users.json", log=self.root / "users.log")
        self._users.append(users)
        self.await_answers(50)

    def traffic(self) -> dict[str, Any]:
        try:
            record: dict[str, Any] = json.loads((self.root / "traffic.json").read_text())
        except FileNotFoundError:
            return {"sent": {}, "answered": {}, "failed": {}, "reasons": {}, "servers": {}, "settled_until": math.inf}
        return record

    def await_answers(self, more: int) -> None:
        goal, deadline = sum(self.traffic()["answered"].values()) + more, time.monotonic() + 60
        while sum(self.traffic()["answered"].values()) < goal:
            assert time.monotonic() < deadline, (self.root / "users.log").read_text()[-2000:]
            time.sleep(0.05)

    def failures(self) -> Counter[str]:
        """Failed requests by kind, once all those that were sent before this call have ended."""
        asked = time.monotonic()
        while (now := self.traffic())["settled_until"] < asked:
            assert time.monotonic() < asked + 80, now
            time.sleep(0.05)
        return Counter(now["failed"])

    def begin_trial(self) -> Trial:
        self.trials += 1
        return Trial(self, f"r{self.trials}")


class Trial:
    """The canary of one release, and what its users lose meanwhile."""

    def __init__(self, site: LiveSite, release_id: str) -> None:
        self.site = site
        self.release_id = release_id
        self.stable = site.stable
        self.candidate = other_slot(site.stable)
        self.policy: dict[str, Any] = dict(QUICK)
        self.router: TrafficRouter = site.router
        self.access_log = AccessLog(site.router.files.access_log, site.router.slot_of_address)
        self.traffic: Traffic | None = None
        self.before = site.failures()
        self._threads = ThreadPoolExecutor(max_workers=2)

    def plan(self, run: str = "first run") -> CanaryPlan:
        production = Pointer(
            release_id="before",
            repository=STABLE,
            slot=self.stable,
            recipe="none",
            promoted_at=datetime(2026, 1, 1, tzinfo=UTC),
        )
        return CanaryPlan(
            release_id=self.release_id,
            run=run,
            target="cpu",
            candidate=CANDIDATE,
            production=production,
            policy=CanaryPolicy.model_validate(self.policy),
            patience=SHORT,
        )

    def step(self, percent: float, *, run: str = "first run") -> Judgement:
        """Run one step to its end, with a controller of its own."""
        journal = CanaryJournal(self.site.store, self.release_id, "cpu")
        with Lease(self.site.store, lease_name("cpu"), seconds=2.0) as lease:
            controller = CanaryController(
                self.plan(run),
                journal=journal,
                lease=lease,
                router=self.router,
                traffic=self.traffic or LoggedTraffic(self.access_log),
                slots=self.site.control,
            )
            return controller.run_step(percent)

    def start(self, percent: float, **options: Any) -> Future[Judgement]:
        """Run one step in the background."""
        return self._threads.submit(self.step, percent, **options)

    def reach(self, *percents: float) -> None:
        """Pass the steps up to here."""
        for percent in percents:
            judgement = self.step(percent)
            assert judgement.verdict == "GO", judgement

    def await_phase(self, phase: Phase, percent: float) -> CanaryRecord:
        deadline = time.monotonic() + 25
        while True:
            record = read_canary_record(self.site.store, self.release_id, "cpu")
            if record is not None and (record.phase, record.step_percent) == (phase, percent):
                return record
            assert time.monotonic() < deadline, record
            time.sleep(0.02)

    def fault_at_50_percent(self, **fault: float) -> Judgement:
        """The step's judgement when the candidate is fine until its bake has begun."""
        self.policy |= {"steps_percent": (50.0, 100.0), "minimum_bake_seconds": 20.0, "maximum_bake_seconds": 40.0}
        running = self.start(50)
        self.await_phase(Phase.BAKING, 50)
        self.site.control.fault(self.candidate, **fault)
        return running.result(timeout=80)

    def assert_rolled_back(self) -> None:
        assert self.record.phase is Phase.ROLLED_BACK
        assert self.site.weights() == {self.stable: ALL}
        assert not self.site.control.alive(self.candidate)
        assert self.events[-2:] == ["rolling back", "rolled back"]

    def roll_back(self, router: TrafficRouter | None = None) -> CanaryRecord:
        router = router or self.site.router
        place = ServedPlace(self.site.store, "", "cpu", router, self.site.control, SHORT)
        record = ensure_rolled_back(place, self.release_id)
        assert record is not None
        return record

    @property
    def record(self) -> CanaryRecord:
        record = read_canary_record(self.site.store, self.release_id, "cpu")
        assert record is not None
        return record

    @property
    def events(self) -> list[str]:
        return [event.kind.value for event in self.record.events]

    @property
    def lost(self) -> dict[str, int]:
        """Requests that users lost since the trial began, by kind."""
        return dict(self.site.failures() - self.before)

    @property
    def lost_unary(self) -> dict[str, int]:
        return {kind: count for kind, count in self.lost.items() if "unary" in kind}

    def end(self) -> None:
        """Leave the site as the next trial expects it: all traffic on a healthy stable, the other slot empty."""
        self._threads.shutdown(cancel_futures=True)
        site, router = self.site, self.site.router
        record = read_canary_record(site.store, self.release_id, "cpu")
        if record is not None and record.phase is Phase.PROMOTED:
            site.stable = record.candidate
        site.control.drill = None
        site.control.ensure(site.stable, STABLE)
        state, _ = router.read()
        if state.weights.get(site.stable) != ALL or state.candidate is not None:
            router.write(all_to(site.stable, owner="next trial", epoch=state.epoch + 1), None)
        site.failures()
        site.control.stop(other_slot(site.stable))
