"""Every act asked twice, and in the middle of another; what a place needs in each state; acts and faults at random."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from place_here import canary_record
from simulated import Killed, Served, guard

from llm_pipeline.base.errors import PipelineError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.record import CanaryRecord, Phase, read_canary_record, take_over
from llm_pipeline.canary.router import ALL, RouteState, all_to
from llm_pipeline.operations import switching
from llm_pipeline.operations.status import disagreements
from llm_pipeline.operations.switching import start, stop
from llm_pipeline.operations.upkeep import Action, NotPromoted, Seen, Send, Start, Stop, decide
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.lease import Lease
from llm_pipeline.store.place_state import PlaceState, Pointer, WayBack, read_place

pytestmark = pytest.mark.usefixtures("fast")


Act = Callable[[Served], object]


def stopped(site: Served) -> None:
    stop(site.place, drain_seconds=0.0)


ACTS: Mapping[str, Act] = {
    "promote": lambda site: site.settle("r2"),
    "roll back": lambda site: site.roll_back(),
    "roll r2 back": lambda site: site.roll_back(leaving="r2"),
    "start": lambda site: start(site.place, lambda _: site.router),
    "stop": stopped,
    "guard": guard,
}
PAIRS = [
    pytest.param(outer, inner, id=f"{inner} in {outer}", marks=() if inner == "roll r2 back" else pytest.mark.thorough)
    for outer in ACTS
    for inner in ACTS
]


def promoted_unsettled(root: Path) -> Served:
    """r1 is production, and the canary of r2 has just ended well."""
    site = Served(root)
    site.release("r1")
    assert site.steps(50, 100, release="r2") == ["GO"] * 2
    return site


def done(site: Served) -> list[str]:
    return [effect for effect in site.effects if "leases" not in effect]


def agree(site: Served) -> Pointer:
    """What is in production, once the guard has passed, what was stopped was started and what can be is settled."""
    site.buried()
    guard(site)
    with contextlib.suppress(NotPromoted):
        site.settle("r2")
    start(site.place, lambda _: site.router)
    guard(site)
    last = read_place(site.store, "cpu").on_trial
    record = read_canary_record(site.store, last, "cpu") if last else None
    served = {slot: site.serves[slot].digest if slot in site.running else None for slot in ("blue", "green")}
    assert list(disagreements(site.pointers, record, site.router.state, served)) == [], site.effects
    production = site.pointers.production
    assert production is not None
    assert site.weights() == {production.slot: 10_000}, site.effects
    assert site.serves[production.slot] == production.repository, site.effects
    return production


@pytest.mark.parametrize("act", ACTS)
def test_asked_twice_it_is_done_once(tmp_path: Path, act: str) -> None:
    site = promoted_unsettled(tmp_path)
    ACTS[act](site)
    before = done(site)
    ACTS[act](site)
    kept = [effect for effect in done(site)[len(before) :] if effect.startswith(("start", "stop", "route"))]
    again = [effect for effect in kept if act != "stop" or not effect.startswith("stop")]  # of what is stopped already
    assert again == [], site.effects
    agree(site)


@pytest.mark.parametrize("expired", [pytest.param(False, marks=pytest.mark.thorough), True])
@pytest.mark.parametrize(("outer", "inner"), PAIRS)
def test_in_the_middle_of_another_all_agrees_afterwards(
    tmp_path: Path, outer: str, inner: str, expired: bool, request: pytest.FixtureRequest
) -> None:
    dry = promoted_unsettled(tmp_path / "dry")
    begun = dry.boundary
    ACTS[outer](dry)
    length = dry.boundary - begun
    every = 4 if "thorough" in request.config.option.markexpr.replace("not thorough", "") else length // 2 + 1
    for boundary in range(max(1, every // 2), length + 1, every):
        site = promoted_unsettled(tmp_path / str(boundary))
        site.freeze_at, site.meanwhile = site.boundary + boundary, lambda site=site: meanwhile(site, inner, expired)
        with contextlib.suppress(PipelineError):
            ACTS[outer](site)
        production = agree(site)
        if outer == "roll r2 back" or (inner == "roll r2 back" and expired):
            assert (production.release_id, outer, inner) != ("r2", outer, inner), site.effects


def meanwhile(site: Served, inner: str, expired: bool) -> None:
    """Whoever acts first is frozen, for longer than its lease lasts if that is to have `expired`."""
    if expired:
        take_over(site.store, "cpu")
    with contextlib.suppress(PipelineError):
        ACTS[inner](site)


def test_production_that_a_rollback_leaves_just_before_it_is_started_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = promoted_unsettled(tmp_path)
    site.settle("r2")
    taken = switching.acting

    @contextlib.contextmanager
    def after_a_rollback(store: ArtifactStore, place: str) -> Iterator[Lease]:
        site.roll_back()
        with taken(store, place) as lease:
            yield lease

    monkeypatch.setattr(switching, "acting", after_a_rollback)
    assert start(site.place, lambda _: site.router).pointer.release_id == "r1"
    assert site.serving() == "r1"


NOW = datetime(2026, 6, 1, tzinfo=UTC)
OURS, THEIRS = "demo/ours", "demo/theirs"


def repository(letter: str) -> ArtifactRef:
    return ArtifactRef(kind="model_repository", digest=letter * 64)


def pointer(release: str, letter: str, slot: str) -> Pointer:
    return Pointer.model_validate(
        {"release_id": release, "repository": repository(letter), "slot": slot, "recipe": "none", "promoted_at": NOW}
    )


NEW, OLD = pointer("r2", "b", "green"), pointer("r1", "a", "blue")
SPLIT = RouteState(weights={"green": 9_800, "blue": 200}, candidate="green", owner="r2@here", epoch=3)
ROUTES = [
    None,
    all_to("green", owner="x", epoch=3),
    all_to("green", owner="x", epoch=3, standby="blue"),
    SPLIT,
    SPLIT.model_copy(update={"candidate": "blue"}),
    all_to("blue", owner="forced rollback", epoch=9),
]


def canary(phase: Phase) -> CanaryRecord:
    return canary_record(repository=repository("b"), phase=phase)


def subsets() -> Iterator[tuple[frozenset[str], frozenset[str]]]:
    """Slots whose servers have ended, and slots that serve what they should."""
    for blue, green in itertools.product(("ended", "serves", "stopped"), repeat=2):
        found = {"blue": blue, "green": green}
        yield (
            frozenset(slot for slot, how in found.items() if how == "ended"),
            frozenset(slot for slot, how in found.items() if how == "serves"),
        )


def cases() -> Iterator[tuple[PlaceState, CanaryRecord | None, Seen]]:
    way_back = WayBack(left="r2", to="r1", by="anna", asked_at=NOW, repository=repository("b"))
    known = itertools.product(
        (NEW, None), ((OLD, OURS), (OLD, THEIRS), (None, "")), (timedelta(hours=1), timedelta(hours=-1)),
        (None, way_back, way_back.model_copy(update={"done": True})),
    )  # fmt: skip
    records = (
        None,
        canary(Phase.BAKING),
        canary(Phase.ROLLING_BACK),
        canary(Phase.PROMOTED),
        canary(Phase.ROLLED_BACK),
    )
    for (production, (previous, model), left, back), record, traffic, stands_by, (ended, serving) in itertools.product(
        known, records, ROUTES, (True, False), subsets()
    ):
        state = PlaceState(
            model_id=OURS,
            production=production,
            previous=previous,
            previous_model=model,
            keep_until=NOW + left if previous else None,
            way_back=back,
        )
        yield state, record, Seen(traffic, stands_by, ended, serving)  # type: ignore[arg-type]


def after(seen: Seen, actions: list[Action]) -> Seen:
    """What is found once they were done."""
    for action in actions:
        match action:
            case Start(one):
                seen = replace(seen, ended=seen.ended - {one.slot}, serving=seen.serving | {one.slot})
            case Send(standby):
                seen = replace(seen, traffic=all_to("green", owner="x", epoch=4, standby=standby))
            case Stop(one):
                seen = replace(seen, serving=seen.serving - {one.slot})
    return seen


def test_every_state_with_every_observation() -> None:
    counted = 0
    for state, record, seen in cases():
        counted += 1
        actions = decide(state, record, seen, NOW)
        sends = [action for action in actions if isinstance(action, Send)]
        stops = [action for action in actions if isinstance(action, Stop)]
        about = (state, record, seen, actions)
        if state.production is None:
            assert actions == [], about
            continue
        dead = state.production.slot in seen.ended
        assert dead is (actions[:1] == [Start(state.production)]), "what serves users is first, whatever else is so"
        theirs = record is not None and record.phase in (Phase.BAKING, Phase.ROLLING_BACK)
        undone = state.way_back is not None and not state.way_back.done
        if seen.traffic is None or theirs or undone or seen.traffic.owner.startswith("forced"):
            assert len(actions) == dead, about
        assert [one.pointer for one in stops] in ([], [state.previous]), about
        if stops:
            then = after(seen, sends).traffic
            assert then is not None
            assert (then.weights, then.standby) == ({"green": ALL}, None), "nobody is sent to what is stopped"
        if any(one.standby for one in sends):
            assert (state.previous_model, seen.stands_by) == (OURS, True), "nobody gets another model's answers"
        assert decide(state, record, after(seen, actions), NOW) == [], about
    assert counted > 10_000


def powercut(site: Served) -> None:
    site.running.clear()
    site.hung.clear()


def faults(chance: random.Random, site: Served) -> dict[str, Callable[[], object]]:
    return {
        "blue is killed": lambda: site.running.discard("blue"),
        "green is killed": lambda: site.running.discard("green"),
        "power cut": lambda: powercut(site),
        "the store is full": lambda: setattr(site, "store_takes", False),
        "the store has room": lambda: setattr(site, "store_takes", True),
        "no server starts": lambda: setattr(site, "stable_starts", False),
        "servers start": lambda: setattr(site, "stable_starts", True),
        "the next actor is killed": lambda: setattr(site, "die_at", site.boundary + chance.randrange(1, 40)),
    }


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(one, marks=pytest.mark.thorough) for one in range(12, 200))]
)
@pytest.mark.usefixtures("fast")
def test_after_any_acts_and_faults_everything_says_the_same(tmp_path: Path, seed: int) -> None:
    chance, site = random.Random(seed), Served(tmp_path)  # noqa: S311 - no secret
    site.release("r1")
    told = []
    for _ in range(chance.randrange(4, 14)):
        acts = {
            **ACTS,
            **faults(chance, site),
            "canary": lambda: site.steps(50, 100, release=f"r{chance.randrange(2, 5)}", run=str(chance.random())),
            "late guard": lambda: guard(site, 400.0),
        }
        name = chance.choice(sorted(acts))
        told.append(name)
        with contextlib.suppress(PipelineError, Killed):
            act = acts[name]
            act(site) if name in ACTS else act()  # type: ignore[operator,call-arg]
        if site.dead:
            site.buried()
    site.store_takes = site.stable_starts = True
    site.buried()
    for release in ("r2", "r3", "r4"):
        with contextlib.suppress(PipelineError):
            site.settle(release)
    for later in (0.0, 20_000.0, 40_000.0):  # whatever waits has waited for too long by then
        guard(site, later)
    assert agree(site) is not None, told
