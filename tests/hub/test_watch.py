"""The policy of the release watch: what starts a release, what does not, and that nothing is lost or made twice."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_pipeline.config.release import Watch
from llm_pipeline.hub.access import Hub
from llm_pipeline.hub.observe import list_commit, observe
from llm_pipeline.hub.watch import DAY, Head, Reference, Start, Trouble, WatchDecision, WatchState, decide
from llm_pipeline.release.watch_record import Claim, claim_commit, read_claim, read_claims
from llm_pipeline.store import ArtifactStore

from .conftest import LocalHub

T0 = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
WATCH = Watch(poll_minutes=5, quiet_minutes=10, rebuilds_per_day=2)
A, B, C = ("a" * 40, "b" * 40, "c" * 40)
RELEASED = WatchState(reference=Reference(commit=A, content="old"), head=A, since=T0)


def see(state: WatchState, seen: Head | Trouble, minutes: float = 0, watch: Watch = WATCH):
    return decide(watch, state, seen, T0 + minutes * MINUTE)


def pending(commit: str = B, content: str = "new") -> WatchState:
    return see(RELEASED, Head(commit, content=content))[0]


def started(commit: str = B, content: str = "new", minutes: float = 10) -> tuple[WatchState, WatchDecision]:
    return see(pending(commit, content), Head(commit, content=content, counted=("config.json",)), minutes)


def test_the_first_look_is_where_the_watch_starts_from_and_releases_nothing():
    state, decision = see(WatchState(), Head(A, content="old"))
    assert decision.start is None
    assert state.reference == Reference(commit=A, content="old")
    assert "trigger the DAG to release it" in decision.words
    assert see(state, Head(A, content="old"), 5)[1].words == decision.words


def test_a_new_commit_is_released_after_the_quiet_period_with_what_the_run_needs_to_know():
    before = see(pending(), Head(B, content="new"), 9.9)[1]
    state, decision = started()
    assert before.start is None
    assert decision.start == Start(commit=B, content="new", revision="main", reason=decision.words, seen_at=T0)
    assert "config.json" in decision.words
    assert state.starts == (T0 + 10 * MINUTE,)
    assert "cannot be listed" in see(pending(), Head(B, content="new"), 10)[1].words


@pytest.mark.parametrize(
    ("head", "words", "trouble"),
    [
        (Head(B, content="old"), f"{B[:12]} changes nothing that counts since {A[:12]}", False),
        (Head(B, content="older", claims={B: "run 7"}), f"nothing new: {B[:12]} was released by run run 7", False),
        (Head(B, unusable="no weights"), f"{B[:12]} cannot be released: no weights", True),
    ],
    ids=["other files", "forced back", "unusable"],
)
def test_a_commit_with_nothing_to_release_starts_nothing_and_says_why(head: Head, words: str, trouble: bool):
    _, decision = see(RELEASED, head, 60)
    assert (decision.words, decision.trouble, decision.start) == (words, trouble, None)


def test_more_releases_than_a_day_may_have_wait_their_turn():
    state = pending().model_copy(update={"starts": (T0 - 20 * 60 * MINUTE, T0 - 60 * MINUTE)})
    waiting, decision = see(state, Head(B, content="new"), 10)
    assert decision.start is None
    assert "waits until 2026-01-01 04:00 UTC: 2 releases were started in 24 hours" in decision.words
    assert see(waiting, Head(B, content="new"), 239)[1].start is None
    assert see(waiting, Head(B, content="new"), 240)[1].start.commit == B


def test_a_start_that_no_run_claims_is_made_again_with_more_and_more_patience_unless_a_run_is_on_its_way():
    state, _ = started(minutes=10)
    times = []
    for minute in range(11, 200):
        state, decision = see(state, Head(B, content="new"), minute)
        if decision.start is not None:
            times.append(minute)
            assert decision.start.commit == B
    assert times == [12, 16, 24, 40, 72, 132, 192]
    assert "has not begun" in state.words
    assert len(state.starts) == 1
    state, decision = see(state, Head(B, content="new", busy=True), 500)
    assert decision.start is None
    assert "is the DAG paused?" in see(state, Head(B, content="new"), 501)[1].start.reason


def test_trouble_backs_off_as_the_hub_asks_and_is_forgotten_by_the_next_answer():
    state, waits = RELEASED, []
    for _ in range(6):
        state, decision = see(state, Trouble("503"))
        waits.append(decision.look_again_seconds / 60)
        assert (decision.trouble, decision.words) == (True, "cannot look: 503")
    assert waits == [5, 10, 20, 40, 60, 60]
    state, decision = see(state, Head(A, content="old"))
    assert (state.failures, decision.look_again_seconds) == (0, 300)
    assert see(RELEASED, Trouble("429", retry_after_seconds=7200))[1].look_again_seconds == 7200


def test_a_look_names_what_counts_and_changed_and_asks_once_where_nothing_did(local_hub: LocalHub, hub: Hub):
    first = local_hub.publish()
    reference = list_commit(hub, "demo/tiny", first).reference()
    before = len(local_hub.faults.requests)
    assert observe(hub, "demo/tiny", "main", reference) == Head(first, content=reference.content)
    assert len(local_hub.faults.requests) == before + 1

    readme = local_hub.publish(README__md=b"# other words\n")
    assert observe(hub, "demo/tiny", "main", reference) == Head(readme, content=reference.content)

    local_hub.publish(config__json=b'{"model_type": "qwen"}', tokenizer__json=None, notes__txt=b"x")
    head = observe(hub, "demo/tiny", "main", reference)
    assert head.content != reference.content
    assert head.counted == ("config.json", "tokenizer.json")


def test_a_reference_whose_commit_is_gone_is_compared_by_its_digest(local_hub: LocalHub, hub: Hub):
    digest = list_commit(hub, "demo/tiny", local_hub.publish()).reference().content
    head = observe(hub, "demo/tiny", "main", Reference(commit="f" * 40, content=digest))
    assert (head.content, head.counted) == (digest, ())


def test_a_commit_without_weights_is_unusable_not_trouble(local_hub: LocalHub, hub: Hub):
    local_hub.publish(model__safetensors=None)
    assert "no safetensors" in observe(hub, "demo/tiny", "main", None).unusable


class World:
    """A hub, a store with claims, and an Airflow that may lose what it is given."""

    def __init__(self, limit: int) -> None:
        self.watch = Watch(poll_minutes=5, quiet_minutes=7, rebuilds_per_day=limit)
        self.now = T0
        self.ids = (f"{number:040x}" for number in itertools.count(1))
        self.commits = [(next(self.ids), "content 0")]
        self.state = WatchState()
        self.claims: dict[str, str] = {}
        self.released: list[tuple[datetime, str, str]] = []
        self.look()
        self.baseline = self.commits[0]

    def commit(self, content: str) -> None:
        self.commits.append((next(self.ids), content))

    def force_back(self, steps: int) -> None:
        self.commits.append(self.commits[max(0, len(self.commits) - 1 - steps)])

    def look(self, fate: str = "delivered") -> None:
        """One look; `fate` is what happens to its decision: `killed` before it is remembered, or after, or else."""
        commit, content = self.commits[-1]
        wanted = {commit} | ({self.state.firing.commit} if self.state.firing else set())
        claims = {one: self.claims[one] for one in wanted if one in self.claims}
        state, decision = decide(self.watch, self.state, Head(commit, content=content, claims=claims), self.now)
        if fate == "killed":
            return
        self.state = state
        if decision.start is not None and fate in ("delivered", "delivered twice"):
            for run in range(2 if fate == "delivered twice" else 1):
                self.run(decision.start, f"{self.now.isoformat()} {run}")

    def run(self, start: Start, name: str) -> None:
        if self.claims.setdefault(start.commit, name) == name:
            self.released.append((self.now, start.commit, start.content))


ACTIONS = st.one_of(
    st.tuples(st.just("commit"), st.sampled_from(["content 0", "content 1", "content 2", "content 3"])),
    st.tuples(st.just("force_back"), st.integers(1, 4)),
    st.tuples(st.just("wait"), st.sampled_from([1, 6, 8, 120, 24 * 60])),
    st.tuples(st.just("look"), st.sampled_from(["delivered", "delivered twice", "lost", "killed"])),
    st.tuples(st.just("trouble"), st.just(None)),
)


@settings(max_examples=300, deadline=None)
@given(limit=st.integers(1, 3), actions=st.lists(ACTIONS, max_size=60))
def test_whatever_happens_no_commit_is_released_twice_no_day_has_too_many_and_nothing_is_missed(limit, actions):
    world = World(limit)
    for action, value in actions:
        if action == "wait":
            world.now += value * MINUTE
        elif action == "trouble":
            world.state = decide(world.watch, world.state, Trouble("down"), world.now)[0]
        else:
            getattr(world, action)(value)
    for _ in range(120):  # quiet at last: two days and a half
        world.now += 30 * MINUTE
        world.look()

    commits = [commit for _, commit, _ in world.released]
    assert len(commits) == len(set(commits))
    times = [at for at, _, _ in world.released]
    assert all(later - earlier >= DAY for earlier, later in zip(times, times[limit:], strict=False))
    head, content = world.commits[-1]
    last = world.released[-1][2] if world.released else world.baseline[1]
    assert content == last or head in world.claims


def claim(run: str, commit: str = A, minutes: float = 0) -> Claim:
    return Claim(commit=commit, content="c", run=run, cause="watch", claimed_at=T0 + minutes * MINUTE)


def test_of_many_runs_that_claim_a_commit_at_once_one_gets_it_and_keeps_it(store: ArtifactStore):
    with ThreadPoolExecutor(8) as pool:
        held = list(pool.map(lambda run: claim_commit(store, "tiny", claim(f"run {run}")), range(8)))
    assert len({one.run for one in held}) == 1
    assert claim_commit(store, "tiny", claim(held[0].run, minutes=9)) == held[0]
    assert read_claim(store, "tiny", A) == held[0]


def test_claims_are_those_of_one_config_the_oldest_first(store: ArtifactStore):
    for config, run, commit, minutes in (("tiny", "1", A, 5), ("tiny", "2", B, 1), ("tiny-2", "3", C, 2)):
        claim_commit(store, config, claim(run, commit, minutes))
    assert [one.run for one in read_claims(store, "tiny")] == ["2", "1"]
