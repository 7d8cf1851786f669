"""The claim on a model: never two holders, whoever asks, dies or wakes up again, in any order."""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest

from llm_pipeline.base.detached import process_start_ticks
from llm_pipeline.base.errors import ExitCode
from llm_pipeline.cli import store as store_commands
from llm_pipeline.release.claim import (
    ClaimLost,
    ReleaseClaim,
    Superseded,
    claim_name,
    free_claim,
    read_claim,
    read_claims,
)
from llm_pipeline.release.claim_state import AirflowRun, Claimant, ClaimState, LocalProcess
from llm_pipeline.store import open_store
from llm_pipeline.store.artifact_store import Conflict, Document

MODEL = "organisation/model"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
UNSHARED = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
ASK_ELSEWHERE = """
import sys
from datetime import UTC, datetime
from llm_pipeline.release.claim_state import Claimant, LocalProcess
from llm_pipeline.release.claim import ReleaseClaim
from llm_pipeline.store import open_store
now = datetime.now(UTC)
claimant = Claimant(party=LocalProcess.here(), release="tiny", concurrency="wait", asked_at=now, since=now,
                    renewed_at=now, stale_after_hours=48.0)
claim = ReleaseClaim(open_store(sys.argv[1]), sys.argv[2], claimant)
print("waits" if claim.ask() else "holds", flush=True)
sys.stdin.readline()
print("waits" if claim.ask() else "holds", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path):
    return open_store(f"file://{tmp_path}/store")


def claimant(number: int, concurrency: str = "wait", *, airflow: str = "a", **known) -> Claimant:
    """A DAG run's claimant; the higher its number, the newer."""
    now = datetime.now(UTC)
    values = {
        "party": AirflowRun(airflow=airflow, dag_id="release__tiny", run_id=f"run-{number}"),
        "release": "tiny",
        "concurrency": concurrency,
        "asked_at": NOON + timedelta(seconds=number),
        "since": now,
        "renewed_at": now,
        "stale_after_hours": 48.0,
    }
    return Claimant.model_validate(values | known)


def claim(store, number: int, concurrency: str = "wait", over: frozenset[str] = frozenset(), **known) -> ReleaseClaim:
    """The claim as a DAG run sees it, in an Airflow where the runs named in `over` have ended."""
    airflow = known.get("airflow", "a")
    return ReleaseClaim(
        store,
        MODEL,
        claimant(number, concurrency, **known),
        run_is_over=lambda run: run.run_id in over if run.airflow == airflow else None,
    )


def holder(store) -> str:
    held = read_claim(store, MODEL).holder
    return held.party.run_id if held else ""


class TestWaiting:
    def test_the_first_one_holds_the_claim_and_the_next_is_told_whom_it_waits_for(self, store):
        assert claim(store, 1).ask() is None
        claim(store, 1).check("tiny-0123")
        other = claim(store, 2).ask()
        assert str(other) == "release tiny-0123 (DAG release__tiny, run run-1)"
        told = claim(store, 2).waiting_for(other)
        assert f"{other.since:%Y-%m-%d %H:%M} UTC" in told
        assert "claims/organisation--model.json" in told

    def test_asking_again_neither_loses_the_claim_nor_the_place_in_line(self, store):
        for number in (1, 2, 3):
            claim(store, number).ask()
        assert claim(store, 1).ask() is None
        claim(store, 2).ask()
        claim(store, 1).give_back()
        assert claim(store, 3).ask().party.run_id == "run-2"
        assert claim(store, 2).ask() is None

    def test_whoever_gives_up_leaves_the_line(self, store):
        for number in (1, 2, 3):
            claim(store, number).ask()
        claim(store, 2).give_back()
        assert claim(store, 1).give_back()
        assert claim(store, 3).ask() is None

    def test_models_do_not_wait_for_each_other(self, store):
        assert claim(store, 1).ask() is None
        assert ReleaseClaim(store, "organisation/other", claimant(2)).ask() is None
        holders = {model: state.holder.party.run_id for model, state in read_claims(store).items()}
        assert holders == {MODEL: "run-1", "organisation/other": "run-2"}

    def test_the_block_gives_the_claim_back_however_it_ends(self, store):
        during = []
        with contextlib.suppress(KeyError), claim(store, 1).held():
            during.append(holder(store))
            raise KeyError
        assert [*during, holder(store)] == ["run-1", ""]


class TestSuperseding:
    def test_the_older_one_ends_at_its_next_check_and_the_newer_one_begins_when_it_has_cleaned_up(self, store):
        older, newer = claim(store, 1), claim(store, 2, "supersede")
        older.ask()
        older.check()
        assert newer.ask() is not None
        with pytest.raises(Superseded, match=r"superseded by release tiny \(DAG release__tiny, run run-2\)") as ended:
            older.check()
        assert ended.value.exit_code is ExitCode.INCONCLUSIVE
        assert newer.ask() is not None  # its servers may still be up
        older.give_back()
        assert newer.ask() is None

    def test_the_newest_wins_in_whatever_order_they_ask(self, tmp_path):
        for order in itertools.permutations((1, 2, 3)):
            store = open_store(f"file://{tmp_path}/{''.join(map(str, order))}")
            claim(store, 0).ask()
            for number in order:
                ask_as_a_run_does(claim(store, number, "supersede"))
            claim(store, 0).give_back()
            assert [ask_as_a_run_does(claim(store, number, "supersede")) for number in order] == [
                number == 3 for number in order
            ]

    def test_an_older_run_that_comes_late_does_not_stop_a_newer_one(self, store):
        claim(store, 2, "supersede").ask()
        with pytest.raises(Superseded):
            claim(store, 1, "supersede").ask()
        claim(store, 2, "supersede").check()
        assert read_claim(store, MODEL).waiting == ()

    def test_only_older_ones_are_superseded(self, store):
        holding = claim(store, 0)
        holding.ask()
        assert claim(store, 3).ask() is not None
        assert claim(store, 2, "supersede").ask() is not None
        holding.give_back()
        assert claim(store, 3).ask() is None  # it came first, and is newer
        assert claim(store, 2, "supersede").ask() is not None

    def test_a_run_that_waits_for_a_human_is_not_waited_for_and_its_late_answer_starts_nothing(self, store):
        older, newer = claim(store, 1), claim(store, 2, "supersede")
        older.ask()
        older.park()
        assert newer.ask() is None
        with pytest.raises(Superseded):
            older.check()
        assert not older.give_back()
        assert holder(store) == "run-2"

    def test_a_run_that_waits_for_a_human_keeps_the_claim_from_those_who_wait(self, store):
        older = claim(store, 1)
        older.ask()
        older.park()
        assert claim(store, 2).ask() is not None
        older.check()
        assert not read_claim(store, MODEL).holder.parked


def ask_as_a_run_does(asking: ReleaseClaim) -> bool:
    try:
        return asking.ask() is None
    except Superseded:
        return False


class TestTheDead:
    def test_a_dag_run_that_is_over_is_taken_over_by_the_same_airflow(self, store):
        claim(store, 1).ask()
        assert claim(store, 2).ask() is not None
        assert claim(store, 2, over=frozenset({"run-1"})).ask() is None

    def test_another_airflow_waits_until_nothing_was_heard_for_long(self, store):
        long_ago = datetime.now(UTC) - timedelta(hours=47)
        claim(store, 1).ask()
        foreign = claim(store, 2, airflow="b", over=frozenset({"run-1"}))
        backdate(store, long_ago)
        assert foreign.ask() is not None
        backdate(store, long_ago - timedelta(hours=2))
        assert foreign.ask() is None

    def test_a_running_dag_run_is_never_taken_for_dead_by_its_own_airflow(self, store):
        claim(store, 1).ask()
        backdate(store, NOON - timedelta(days=99))
        assert claim(store, 2).ask() is not None

    def test_a_dead_one_in_line_is_stepped_over(self, store):
        for number in (1, 2, 3):
            claim(store, number).ask()
        claim(store, 1).give_back()
        assert claim(store, 3, over=frozenset({"run-2"})).ask() is None

    def test_one_in_line_that_stopped_asking_is_stepped_over(self, store):
        long_ago = datetime.now(UTC) - timedelta(hours=2)
        claim(store, 1).ask()
        claim(store, 2).ask()
        backdate_line(store, long_ago)
        claim(store, 1).give_back()
        assert claim(store, 3).ask() is None

    def test_a_local_process_that_is_gone_is_taken_over_at_once(self, store):
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        ticks = process_start_ticks(process.pid)
        party = LocalProcess.here().model_copy(update={"pid": process.pid, "start_ticks": ticks})
        claim(store, 1, party=party).ask()
        assert claim(store, 2).ask() is not None
        process.kill()
        process.wait()
        assert claim(store, 2).ask() is None

    def test_a_reused_pid_is_not_taken_for_the_holder(self, store):
        here = LocalProcess.here()
        claim(store, 1, party=here.model_copy(update={"start_ticks": here.start_ticks - 1})).ask()
        assert claim(store, 2).ask() is None

    def test_a_process_of_another_namespace_on_a_host_of_the_same_name_is_judged_by_its_silence(self, store):
        """Both ways: this process holds and asks; neither sees the other one's pids."""
        if subprocess.run([*UNSHARED, "true"], check=False, capture_output=True).returncode:
            pytest.skip("no namespace of processes can be made here: it takes root")
        held = ReleaseClaim(store, MODEL, claimant(1, party=LocalProcess.here()))
        held.ask()
        command = [*UNSHARED, sys.executable, "-c", ASK_ELSEWHERE, store.uri, MODEL]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as elsewhere:
            assert elsewhere.stdout.readline() == "waits\n"
            assert read_claim(store, MODEL).holder.party == held._party
            held.give_back()
            elsewhere.stdin.write("ask\n")
            elsewhere.stdin.flush()
            assert elsewhere.stdout.readline() == "holds\n"
            assert claim(store, 3).ask() is not None
            backdate(store, datetime.now(UTC) - timedelta(hours=49))
            assert claim(store, 3).ask() is None
            elsewhere.stdin.close()

    @pytest.mark.parametrize("pids", ["", "another-boot pid:[4026531836]"])
    def test_a_process_that_cannot_be_seen_from_here_is_judged_by_its_silence(self, store, pids):
        party = LocalProcess.here().model_copy(update={"pids": pids, "pid": 2**22 + 1})
        claim(store, 1, party=party).ask()
        assert claim(store, 2).ask() is not None
        backdate(store, datetime.now(UTC) - timedelta(hours=49))
        assert claim(store, 2).ask() is None

    def test_a_local_process_is_heard_of_while_it_holds_the_claim(self, store, monkeypatch):
        monkeypatch.setattr("llm_pipeline.release.claim.RENEWED_EVERY", timedelta(seconds=0.02))
        held = ReleaseClaim(store, MODEL, claimant(1, party=LocalProcess.here()))
        with held.held():
            backdate(store, long_ago := datetime.now(UTC) - timedelta(hours=49))
            deadline = time.monotonic() + 60
            while read_claim(store, MODEL).holder.renewed_at == long_ago:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert read_claim(store, MODEL).holder is None

    def test_a_claim_of_a_version_before_is_understood(self, store):
        ReleaseClaim(store, MODEL, claimant(1, party=LocalProcess.here())).ask()
        document = store.read_document(claim_name(MODEL))
        del document.value["holder"]["party"]["pids"]
        store.write_document(claim_name(MODEL), document.value, document.revision)
        assert claim(store, 2).ask() is not None

    def test_two_runs_of_one_process_are_two(self, store):
        claim(store, 1, party=LocalProcess.here()).ask()
        assert claim(store, 2, party=LocalProcess.here()).ask() is not None

    def test_a_holder_that_was_buried_alive_starts_nothing(self, store):
        older = claim(store, 1)
        older.ask()
        claim(store, 2, over=frozenset({"run-1"})).ask()
        with pytest.raises(Superseded):
            older.check()
        assert str(older.taken_by_another().party) == "DAG release__tiny, run run-2"

    def test_the_command_shows_who_holds_and_who_waits_and_frees(self, store, tmp_path):
        claim(store, 1).ask()
        claim(store, 2).ask()
        assert command(tmp_path) == [
            "organisation/model  running: release tiny (DAG release__tiny, run run-1)",
            "organisation/model  waits: release tiny (DAG release__tiny, run run-2)",
        ]
        assert command(tmp_path, "--free", MODEL) == [
            "organisation/model: taken from release tiny (DAG release__tiny, run run-1)"
        ]
        assert command(tmp_path, "--free", MODEL) == ["organisation/model: no release held it"]
        assert claim(store, 2).ask() is None

    def test_a_claim_freed_by_hand_is_lost_for_its_holder(self, store):
        claim(store, 1).ask()
        claim(store, 2).ask()
        assert free_claim(store, MODEL).party.run_id == "run-1"
        with pytest.raises(ClaimLost, match=r"clear the run's task `claim`"):
            claim(store, 1).check()
        assert claim(store, 2).ask() is None


def command(root, *arguments: str) -> list[str]:
    """What `llm-pipeline claims` says, without the times."""
    deployment = root / "here.yaml"
    environment = f"{{ control: {sys.executable} }}"
    places = f"store: {root}/store\nwork_root: {root}\nstate_root: {root}\ntriton_home: {root}\n"
    deployment.write_text(f"{places}environments: {environment}\n")
    parser = argparse.ArgumentParser()
    store_commands.add_commands(parser.add_subparsers())
    options = parser.parse_args(["claims", "-d", str(deployment), *arguments])
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert options.run(options) == ExitCode.GO
    return [line.partition(", since")[0] for line in said.getvalue().splitlines()]


def backdate_line(store, when: datetime) -> None:
    document = store.read_document(claim_name(MODEL))
    state = ClaimState.model_validate(document.value)
    line = tuple(one.model_copy(update={"renewed_at": when}) for one in state.waiting)
    state = ClaimState(holder=state.holder, waiting=line)
    store.write_document(claim_name(MODEL), state.model_dump(mode="json"), document.revision)


def backdate(store, when: datetime) -> None:
    document = store.read_document(claim_name(MODEL))
    held = ClaimState.model_validate(document.value).holder.model_copy(update={"renewed_at": when})
    store.write_document(claim_name(MODEL), ClaimState(holder=held).model_dump(mode="json"), document.revision)


class Documents:
    """Documents in memory, which an exploration can put back."""

    def __init__(self) -> None:
        self.value: dict | None = None
        self.revision = 0

    def read_document(self, _name: str) -> Document | None:
        return None if self.value is None else Document(self.value, str(self.revision))

    def write_document(self, _name: str, value: dict, expect: str | None) -> str:
        if expect != (None if self.value is None else str(self.revision)):
            raise Conflict("changed")
        self.value, self.revision = value, self.revision + 1
        return str(self.revision)


@dataclass(frozen=True)
class World:
    """The stored claim and where each of the runs is in its life."""

    claim: str
    phases: tuple[str, ...]

    def moved(self, number: int, phase: str) -> World:
        return replace(self, phases=(*self.phases[:number], phase, *self.phases[number + 1 :]))


ACTIVE = ("holds", "started", "cleans")
ENDED = ("ended", "dead")


class Exploration:
    """Every order in which runs can ask, start stages, wait for a human, end and die."""

    def __init__(self, policies: tuple[str, ...], deaths: int) -> None:
        self.policies = policies
        self.deaths = deaths
        self.runs = [claimant(number, policy) for number, policy in enumerate(policies)]
        self.seen: set[World] = set()
        self.granted: set[int] = set()

    def explore(self) -> int:
        """Visit every state; returns how many there are."""
        start = World(ClaimState().model_dump_json(), ("asks",) * len(self.runs))
        pending = [start]
        while pending:
            world = pending.pop()
            if world in self.seen:
                continue
            self.seen.add(world)
            self.check(world)
            following = list(self.following(world))
            stuck = all(one == world for one in following)
            assert not stuck or all(phase in ENDED for phase in world.phases), f"nobody can go on: {world}"
            pending += following
        return len(self.seen)

    def check(self, world: World) -> None:
        active = [number for number, phase in enumerate(world.phases) if phase in ACTIVE]
        assert len(active) <= 1, f"two on their way: {world}"

    def following(self, world: World) -> Iterator[World]:
        for number, phase in enumerate(world.phases):
            if phase in ENDED:
                continue
            yield self.step(world, number, phase)
            if phase == "started":
                yield self.step(world, number, "asks for a human")
            if world.phases.count("dead") < self.deaths:
                yield world.moved(number, "dead")

    def step(self, world: World, number: int, phase: str) -> World:
        over = {f"run-{other}" for other, now in enumerate(world.phases) if now == "dead"}
        documents = Documents()
        documents.value = ClaimState.model_validate_json(world.claim).model_dump(mode="json")
        acting = ReleaseClaim(documents, MODEL, self.runs[number], run_is_over=lambda run: run.run_id in over)
        try:
            following = self.act(acting, phase)
        except (Superseded, ClaimLost):
            following = "cleans" if read_claim(documents, MODEL).holds(self.runs[number].party) else "ended"
        if following == "holds":
            self.granted.add(number)
        return World(ClaimState.model_validate(documents.value).model_dump_json(), world.phases).moved(
            number, following
        )

    def act(self, acting: ReleaseClaim, phase: str) -> str:
        actions: dict[str, Callable[[], str]] = {
            "asks": lambda: "holds" if acting.ask() is None else "asks",
            "holds": lambda: acting.check() or "started",
            "started": lambda: acting.give_back() and "ended",
            "cleans": lambda: acting.give_back() and "ended",
            "asks for a human": lambda: acting.park() or "parked",
            "parked": lambda: acting.check() or "started",
        }
        return actions[phase]()


@pytest.mark.parametrize("policies", list(itertools.product(("wait", "supersede"), repeat=3)), ids="-".join)
def test_in_every_order_of_events_there_is_one_at_most_and_somebody_can_go_on(policies, monkeypatch):
    monkeypatch.setattr("llm_pipeline.release.claim.datetime", StoppedClock)
    exploration = Exploration(policies, deaths=1)
    assert exploration.explore() > 100
    assert exploration.granted == {0, 1, 2}


class StoppedClock(datetime):
    """Time stands still, so that states differ only in what matters."""

    @classmethod
    def now(cls, _timezone=None) -> datetime:
        return NOW


NOW = datetime.now(UTC)


class Interrupted:
    """A real store in which something happens right after the first read."""

    def __init__(self, store, happening: Callable[[], object]) -> None:
        self.store = store
        self.happening: Callable[[], object] | None = happening

    def read_document(self, name: str) -> Document | None:
        document = self.store.read_document(name)
        if happening := self.happening:
            self.happening = None
            happening()
        return document

    def write_document(self, name: str, value: dict, expect: str | None) -> str:
        return self.store.write_document(name, value, expect)


def test_of_two_that_ask_at_the_same_moment_one_waits(store):
    late = claim(Interrupted(store, lambda: claim(store, 1).ask()), 2)
    assert late.ask().party.run_id == "run-1"
    assert holder(store) == "run-1"


def test_one_that_is_superseded_at_the_moment_of_its_check_does_not_go_on(store):
    claim(store, 1).ask()
    checking = claim(Interrupted(store, lambda: claim(store, 2, "supersede").ask()), 1)
    with pytest.raises(Superseded):
        checking.check("tiny-0123")
    assert holder(store) == "run-1"


def test_threads_with_a_real_store_are_never_two_at_once(store):
    inside, most = [], []

    def run(number: int) -> None:
        for turn in range(6):
            with claim(store, number, party=LocalProcess.here()).held(poll_seconds=0.002):
                inside.append(turn)
                most.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 24
    assert read_claim(store, MODEL) == ClaimState()


def test_the_claim_says_which_process_of_this_host_holds_it():
    assert str(LocalProcess.here()) == f"process {os.getpid()} on {LocalProcess.here().host}"
