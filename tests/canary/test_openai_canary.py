"""A whole canary between two servers with OpenAI's API, through the real Envoy, under users who ask all the time."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from openai_server import OpenAiDouble
from openai_site import openai_slots, released, start_before

from llm_pipeline.adapters.envoy.process import stop_router
from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base import detached
from llm_pipeline.base.verdict import Judgement
from llm_pipeline.canary.controller import CanaryController
from llm_pipeline.canary.openai_slots import OpenAiSlots
from llm_pipeline.canary.record import CanaryJournal, CanaryPlan, CanaryRecord, Phase, lease_name, read_canary_record
from llm_pipeline.canary.router import ALL, Patience
from llm_pipeline.canary.traffic import LoggedTraffic
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.serving.slot_fence import FencingToken
from llm_pipeline.store.lease import Lease
from llm_pipeline.store.place_state import Pointer

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

USERS = Path(__file__).with_name("openai_users.py")
POLICY = {
    "steps_percent": (50.0, 100.0),
    "minimum_bake_seconds": 1.0,
    "maximum_bake_seconds": 60.0,
    "minimum_requests": 10,
    "slow_ratio": 3.0,
    "look_seconds": 0.2,
    "on_undecided": "roll_back",
}


class Trial:
    """Two servers behind Envoy, users, and the canary of what green serves."""

    def __init__(self, root: Path, blue: OpenAiDouble, green: OpenAiDouble) -> None:
        self.root, self.blue, self.green = root, blue, green
        self.store = LocalStore(f"file://{root}/store")
        self.stable, self.candidate = released(self.store, root, blue), released(self.store, root, green)
        servers = openai_slots(blue.url, green.url)
        self.slots = OpenAiSlots(self.store, servers, target="cpu", state_root=root / "state", wait_seconds=0.0)
        self.slots.replace("blue", self.stable, FencingToken(0, 0))
        self.router = start_before(servers, root)
        command = [sys.executable, str(USERS), str(self.router.place.port), "40", str(root / "traffic.json")]
        self.users = detached.start("users", command, root / "users.json", log=root / "users.log")
        self._await(lambda: sum(self._traffic()["answered"].values()) >= 50)

    def step(self, percent: float, **policy: object) -> Judgement:
        plan = CanaryPlan(
            release_id="r1",
            run="first run",
            target="cpu",
            candidate=self.candidate,
            production=Pointer(
                release_id="before",
                repository=self.stable,
                slot="blue",
                recipe="none",
                promoted_at=datetime(2026, 1, 1, tzinfo=UTC),
            ),
            policy=CanaryPolicy.model_validate(POLICY | policy),
            patience=Patience(write=3, confirm=2, drain=1, blind_drain=0.3),
        )
        with Lease(self.store, lease_name("cpu"), seconds=5.0) as lease:
            controller = CanaryController(
                plan,
                journal=CanaryJournal(self.store, "r1", "cpu"),
                lease=lease,
                router=self.router,
                traffic=LoggedTraffic(self.router.access_log()),
                slots=self.slots,
            )
            return controller.run_step(percent)

    def goes_bad_at_50_percent(self, fault: Callable[[], object]) -> Judgement:
        """The judgement of a step whose candidate is sound until users ask it."""
        with ThreadPoolExecutor() as threads:
            running = threads.submit(self.step, 50.0, minimum_bake_seconds=60.0, maximum_bake_seconds=90.0)
            self._await(lambda: (found := self._record()) is not None and found.phase is Phase.BAKING)
            fault()
            return running.result(timeout=120)

    def record(self) -> CanaryRecord:
        found = self._record()
        assert found is not None
        return found

    def weights(self) -> dict[str, int]:
        return {slot: weight for slot, weight in self.router.read()[0].weights.items() if weight}

    def users_go(self) -> Counter[str]:
        """Failed requests by kind, of all that were sent."""
        detached.stop(self.users, grace_seconds=40)
        return Counter(self._traffic()["failed"])

    def down(self) -> None:
        detached.stop(self.users, grace_seconds=5)
        stop_router(self.root / "router")

    def _record(self) -> CanaryRecord | None:
        return read_canary_record(self.store, "r1", "cpu")

    def _traffic(self) -> dict[str, dict[str, int]]:
        try:
            found: dict[str, dict[str, int]] = json.loads((self.root / "traffic.json").read_text())
        except FileNotFoundError:
            return {"answered": {}, "failed": {}}
        return found

    def _await(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 90
        while not done():
            assert time.monotonic() < deadline, (self.root / "users.log").read_text()[-2000:]
            time.sleep(0.05)


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    with OpenAiDouble() as blue, OpenAiDouble() as green:
        found = Trial(tmp_path, blue, green)
        try:
            yield found
        finally:
            found.down()


def test_a_good_candidate_is_promoted_and_nobody_loses_a_request(trial: Trial) -> None:
    for percent in (50.0, 100.0):
        judgement = trial.step(percent)
        assert judgement.verdict == "GO", judgement
    assert trial.record().phase is Phase.PROMOTED
    assert trial.weights()["green"] > trial.weights()["blue"] > 0
    assert trial.users_go() == {}
    assert len(trial.green.seen) > 20


@pytest.mark.parametrize("fault", ["error", "truncated", "cut"])
def test_errors_under_status_200_and_streams_that_break_off_are_charged_to_the_candidate(
    trial: Trial, fault: str
) -> None:
    judgement = trial.goes_bad_at_50_percent(lambda: setattr(trial.green, "fault", fault))
    assert judgement.verdict == "NO_GO"
    assert trial.record().phase is Phase.ROLLED_BACK
    assert trial.weights() == {"blue": ALL}


def test_a_dead_candidate_is_rolled_back_and_no_whole_answer_is_lost(trial: Trial) -> None:
    judgement = trial.goes_bad_at_50_percent(trial.green.die)
    assert judgement.verdict == "NO_GO"
    assert trial.record().phase is Phase.ROLLED_BACK
    assert trial.weights() == {"blue": ALL}
    assert trial.users_go()["unary"] == 0
