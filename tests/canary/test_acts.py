"""Every act on production, asked twice, and in the middle of another: it is done once, and everything says the same."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from test_one_way_back import Served

from llm_pipeline.base.errors import PipelineError
from llm_pipeline.canary.record import read_canary_record, take_over
from llm_pipeline.operations import switching
from llm_pipeline.operations.guard import Guard
from llm_pipeline.operations.status import disagreements
from llm_pipeline.operations.switching import start, stop
from llm_pipeline.operations.upkeep import NotPromoted
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.lease import Lease
from llm_pipeline.store.place_state import Pointer, read_place

pytestmark = pytest.mark.usefixtures("fast")

Act = Callable[[Served], object]


def guard(site: Served) -> None:
    Guard(site.place).guard(time.time())


def stopped(site: Served) -> None:
    stop(site.place, lambda: {slot: site.serves[slot] for slot in sorted(site.running)}, drain_seconds=0.0)


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
