from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from looking import LIMITS, POLICY, watched

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.analysis import AnalysisState, begin, begin_step, observe
from llm_pipeline.canary.arm_counts import window
from llm_pipeline.canary.evidence import Outcome, StepDecision, decide, guard
from llm_pipeline.canary.judgements import undecided_and_clean
from llm_pipeline.canary.observations import ObservedRequest
from llm_pipeline.canary.slow_limits import Thresholds, fix_thresholds
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.statistics.eprocess import SplitTest


def request(arm="blue", *, at=0.0, fault=False, refused=False, total=20.0, first=10.0, **changes) -> ObservedRequest:
    values = {
        "started_at": at,
        "arm": arm,
        "on_trial": arm == "green",
        "fault": fault,
        "error": fault or refused,
        "refused": refused,
        "lost": refused,
        "cancelled": False,
        "streaming": True,
        "first_byte_milliseconds": first,
        "total_milliseconds": total,
        "bytes_sent": 100,
    }
    return ObservedRequest(**{**values, **changes})


def started(share: float = 0.5, thresholds: Thresholds = LIMITS) -> AnalysisState:
    return begin_step(begin(thresholds, POLICY), share)


def look(
    state: AnalysisState, requests: list[ObservedRequest], elapsed: float = 30.0
) -> tuple[AnalysisState, StepDecision]:
    state = watched(state, requests) if requests else observe(state, window([], "green", LIMITS, 0.0))
    return state, decide(state, POLICY, elapsed)


def verdicts(decision: StepDecision) -> dict[str, Verdict]:
    return {fact.name: fact.verdict for fact in decision.judgement.evidence}


def mixed(candidate: int, stable: int, **of_candidate) -> list[ObservedRequest]:
    """Slow and fast requests, 10 % slow in both arms, unless said otherwise of the candidate."""
    both = [request("blue", at=number, total=150.0 if number % 10 == 0 else 20.0) for number in range(stable)]
    both += [
        request("green", at=number, **{"total": 150.0 if number % 10 == 0 else 20.0, **of_candidate})
        for number in range(candidate)
    ]
    return both


def test_a_clean_step_passes() -> None:
    _, decision = look(started(), mixed(50, 50))
    assert decision.outcome is Outcome.PASS
    assert decision.judgement.verdict is Verdict.GO


def test_a_clean_step_bakes_for_its_minimum_time() -> None:
    _, decision = look(started(), mixed(50, 50), elapsed=9.9)
    assert decision.outcome is Outcome.CONTINUE


def test_a_step_with_too_few_candidate_requests_goes_on_and_is_undecided_at_the_end() -> None:
    state, decision = look(started(0.05), mixed(2, 40))
    assert decision.outcome is Outcome.CONTINUE
    _, decision = look(state, [], elapsed=60.0)
    assert decision.outcome is Outcome.UNDECIDED
    assert decision.judgement.verdict is Verdict.INCONCLUSIVE


def test_what_neither_arm_shows_any_more_holds_no_step_but_missing_answers_do() -> None:
    whole = [replace(one, streaming=False, first_byte_milliseconds=None) for one in mixed(50, 50)]
    _, decision = look(started(), whole)
    assert decision.outcome is Outcome.PASS
    assert "slow first token" not in verdicts(decision)
    refused = [request(arm, at=number, refused=True) for number in range(50) for arm in ("blue", "green")]
    _, decision = look(started(), refused, elapsed=60.0)
    assert decision.outcome is Outcome.UNDECIDED
    assert verdicts(decision)["slow end to end"] is Verdict.INCONCLUSIVE


def test_no_traffic_at_all_never_passes() -> None:
    _, decision = look(started(), [], elapsed=60.0)
    assert decision.outcome is Outcome.UNDECIDED


def test_consecutive_failures_roll_back_at_once() -> None:
    faults = [request("green", at=100 + number, fault=True) for number in range(5)]
    _, decision = look(started(), [*mixed(3, 8), *faults], elapsed=0.5)
    assert decision.outcome is Outcome.REGRESSED
    assert verdicts(decision) == {"immediate guard": Verdict.NO_GO}


def test_a_run_of_failures_is_counted_across_looks() -> None:
    state, decision = look(started(), [request("green", fault=True) for _ in range(3)], elapsed=0.5)
    assert decision.outcome is Outcome.CONTINUE
    state, decision = look(state, [request("blue")], elapsed=1.0)
    state, decision = look(state, [request("green", fault=True) for _ in range(2)], elapsed=1.5)
    assert decision.outcome is Outcome.REGRESSED


def test_a_success_ends_the_run_of_failures() -> None:
    state, _ = look(started(), [request("green", fault=True) for _ in range(4)], elapsed=0.5)
    state, _ = look(state, [request("green", at=1), request("blue", at=1)], elapsed=1.0)
    assert state.step is not None
    assert state.step.faults_in_a_row == 0


def test_a_clients_bad_requests_are_nobodys_failures_in_a_row() -> None:
    refused = [request("green", at=number, refused=True) for number in range(8)]
    refused += [request("blue", at=number, refused=True) for number in range(8)]
    _, decision = look(started(), refused, elapsed=0.5)
    assert decision.outcome is Outcome.CONTINUE


def refusing(*, candidate: float, users: int, each: int = 1, voter: str = "client") -> StepDecision:
    """Stable refuses 2 % of the users, the candidate a share; one more asks the candidate badly all the time."""
    people = [request(at=n, **{voter: f"{n * 7919:x}"}, refused=n % 50 == 0) for n in range(users)]
    baseline = fix_thresholds([*people, *(request(at=n) for n in range(100))], POLICY)
    assert baseline is not None
    seen = [
        request(arm, at=n, **{voter: f"{n * 7919:x}"}, refused=n % 100 < 100 * (candidate if arm == "green" else 0.02))
        for n in range(users)
        for arm in ("blue", "green")
    ]
    seen += [request("green", at=n / each, **{voter: "bad"}, refused=True) for n in range(each * users)]
    state = watched(begin_step(begin(baseline, POLICY), 0.5), seen)
    return decide(
        state.model_copy(update={"step": state.step.model_copy(update={"split": SplitTest(intended=0.5)})}),
        POLICY,
        30.0,
    )


@pytest.mark.parametrize("voter", ["client", "session"])
def test_one_user_whose_requests_are_refused_all_the_time_moves_no_verdict(voter) -> None:
    assert "refusals" in verdicts(refusing(candidate=0.02, users=200, each=5, voter=voter))
    decision = refusing(candidate=0.02, users=200, each=5, voter=voter)
    assert [name for name, verdict in verdicts(decision).items() if verdict is Verdict.NO_GO] == []


def test_a_candidate_that_refuses_many_users_regresses_by_that() -> None:
    decision = refusing(candidate=0.2, users=400)
    assert [name for name, verdict in verdicts(decision).items() if verdict is Verdict.NO_GO] == ["refusals"]


def test_refusals_of_users_that_nobody_can_tell_apart_are_not_compared() -> None:
    refused = [
        request(arm, at=n, refused=n % 2 == 0 and arm == "green") for n in range(60) for arm in ("blue", "green")
    ]
    _, decision = look(started(), refused)
    assert decision.outcome is Outcome.PASS


def one_of_many(**bad: object) -> StepDecision:
    """Forty users whom both arms serve well, and one whose every request goes wrong; its session is the candidate's."""
    clients = [f"{n * 104_729 * 256:x}" for n in range(40)]
    baseline = fix_thresholds([request(at=n, client=clients[n % 40], total=20.0 + n % 7) for n in range(200)], POLICY)
    assert baseline is not None
    seen = [
        request(arm, at=n, client=clients[n % 40], total=20.0 + n % 7) for n in range(120) for arm in ("blue", "green")
    ]
    seen += [request("green", at=n / 2, client="badbad00", **bad) for n in range(240)]
    state = begin_step(begin(baseline, POLICY), 0.75)
    return decide(watched(state, seen), POLICY, 30.0)


@pytest.mark.parametrize(
    "bad",
    [{"fault": True}, {"total": 9000.0, "first": 8000.0}, {"cancelled": True, "total": 9000.0}, {"refused": True}],
    ids=["fails", "is slow", "leaves", "is refused"],
)
def test_nothing_that_a_single_client_does_decides(bad) -> None:
    decision = one_of_many(**bad)
    assert decision.outcome is Outcome.PASS


def test_a_client_with_many_sessions_has_many_votes_and_still_does_not_decide() -> None:
    clients = [f"{n * 104_729 * 256 + n:x}" for n in range(200)]
    baseline = fix_thresholds([request(at=n, client=clients[n % 200]) for n in range(400)], POLICY)
    assert baseline is not None
    seen = [request(arm, at=n, client=client) for n, client in enumerate(clients) for arm in ("blue", "green")]
    seen += [request("green", at=n, client="badbad00", session=f"{(n + 7) * 7919:x}", refused=True) for n in range(200)]
    decision = decide(watched(begin_step(begin(baseline, POLICY), 0.67), seen), POLICY, 30.0)
    assert decision.outcome is Outcome.PASS
    refusals = next(fact for fact in decision.judgement.evidence if fact.name == "refusals")
    assert refusals.samples > 300


def test_what_all_clients_meet_decides_at_once_where_they_are_told_apart() -> None:
    baseline = fix_thresholds([request(at=n, client=f"{n % 40 * 104_729 * 256:x}") for n in range(200)], POLICY)
    assert baseline is not None
    assert baseline.clients
    failing = [request("green", at=n / 10, client=f"{n * 104_729 * 256:x}", fault=True) for n in range(5)]
    decision = decide(watched(begin_step(begin(baseline, POLICY), 0.5), failing), POLICY, 0.5)
    assert verdicts(decision) == {"immediate guard": Verdict.NO_GO}


@pytest.mark.parametrize("users", [20, 400])
def test_a_candidate_that_fails_most_requests_of_many_clients_is_stopped_however_many_they_are(users: int) -> None:
    clients = [f"{n * 104_729 * 256:x}" for n in range(users)]
    baseline = fix_thresholds([request(at=n, client=clients[n % users]) for n in range(400)], POLICY)
    assert baseline is not None
    three_of_four = [request("green", at=n, client=clients[n % users], fault=n % 4 != 0) for n in range(400)]
    state = observe(started(thresholds=baseline), window(three_of_four, "green", baseline, 0.0))
    assert state.step is not None
    assert state.step.faults_in_a_row < POLICY.consecutive_failures
    assert guard(state.step, POLICY) is not None


def test_a_late_client_whose_requests_all_fail_does_not_decide_alone() -> None:
    clients = [f"{n * 104_729 * 256:x}" for n in range(400)]
    baseline = fix_thresholds([request(at=n, client=clients[n]) for n in range(400)], POLICY)
    assert baseline is not None
    seen = [request("green", at=n, client=client, fault=n % 10 == 0) for n, client in enumerate(clients)]
    seen += [request("green", at=400 + n, client="badbad00", fault=True) for n in range(600)]
    state = observe(started(thresholds=baseline), window(seen, "green", baseline, 0.0))
    assert state.step is not None
    assert guard(state.step, POLICY) is None


def test_a_gateway_that_sends_most_requests_is_no_single_client() -> None:
    baseline = fix_thresholds([request(at=n, client="abc00" if n % 4 else f"{n:x}00") for n in range(200)], POLICY)
    assert baseline is not None
    assert not baseline.clients
    assert any("any one client" in what for what in baseline.left_out)


def test_half_of_twenty_requests_failing_rolls_back_at_once() -> None:
    alternating = [request("green", at=number, fault=number % 2 == 0) for number in range(20)]
    _, decision = look(started(), alternating + [request("blue", at=n) for n in range(20)], elapsed=0.5)
    assert decision.outcome is Outcome.REGRESSED


def test_a_slower_candidate_regresses_and_the_evidence_names_the_metric() -> None:
    _, decision = look(started(), mixed(60, 60, total=500.0, first=400.0), elapsed=3.0)
    assert decision.outcome is Outcome.REGRESSED
    assert verdicts(decision)["slow end to end"] is Verdict.NO_GO
    assert verdicts(decision)["slow first token"] is Verdict.NO_GO
    assert verdicts(decision)["errors"] is Verdict.GO


def test_a_slow_candidate_is_seen_even_while_the_whole_machine_is_slow() -> None:
    both = [request("blue", at=n, total=120.0 if n % 2 else 20.0) for n in range(60)]
    both += [request("green", at=n, total=450.0) for n in range(60)]
    _, decision = look(started(), both, elapsed=3.0)
    slow = next(fact for fact in decision.judgement.evidence if fact.name == "slow end to end")
    assert (decision.outcome, slow.limit) == (Outcome.REGRESSED, 0.0)
    assert "beyond 200 ms" in slow.detail or "beyond 400 ms" in slow.detail


def test_a_late_first_token_alone_regresses() -> None:
    _, decision = look(started(), mixed(60, 60, first=90.0), elapsed=3.0)
    assert [name for name, verdict in verdicts(decision).items() if verdict is Verdict.NO_GO] == ["slow first token"]


def test_the_metrics_that_were_compared_come_first_in_the_evidence() -> None:
    _, decision = look(started(), mixed(60, 60))
    names = [fact.name for fact in decision.judgement.evidence]
    assert names[:3] == ["errors", "slow first token", "slow end to end"]
    assert names.index("sample ratio") > names.index("slow end to end")


def test_a_wrong_split_is_anomalous_before_any_comparison() -> None:
    _, decision = look(started(0.05), mixed(200, 200, total=500.0))
    assert decision.outcome is Outcome.ANOMALOUS
    assert verdicts(decision) == {"sample ratio": Verdict.ANOMALOUS}


def test_the_guard_protects_users_even_when_the_split_is_wrong() -> None:
    faults = [request("green", at=number, fault=True) for number in range(200)]
    _, decision = look(started(0.05), faults, elapsed=0.5)
    assert decision.outcome is Outcome.REGRESSED


def test_both_arms_failing_blames_nobody_and_holds() -> None:
    both = [request(arm, at=number, fault=True) for number in range(40) for arm in ("blue", "green")]
    state, decision = look(started(), both)
    assert decision.outcome is Outcome.CONTINUE
    assert verdicts(decision)["stable's own failures"] is Verdict.INCONCLUSIVE
    _, decision = look(state, [], elapsed=60.0)
    assert decision.outcome is Outcome.UNDECIDED


def test_requests_that_started_before_the_step_do_not_count() -> None:
    seen = window([request("green", at=1.0), request("green", at=3.0)], "green", LIMITS, 2.0)
    assert seen.candidate.requests == 1


@pytest.mark.parametrize(("left_after", "units", "events"), [(90.0, 0, (0, 0, 0, 0)), (300.0, 1, (1, 1, 0, 0))])
def test_an_answer_that_its_user_left_is_judged_by_its_age_where_that_says_something(left_after, units, events) -> None:
    seen = window([request("green", cancelled=True, total=left_after)], "green", LIMITS, 0.0)
    counts = {counts.name: counts.candidate for counts in seen.counts}
    assert (counts["slow end to end"].units, counts["slow end to end"].events) == (units, events)
    assert (seen.candidate.requests, seen.candidate_units, counts["errors"].units) == (1, 1, 0)


def last_step(**of_candidate: float) -> tuple[AnalysisState, StepDecision]:
    """All traffic, or nearly, after a clean comparison; 0.2 % of stable's requests failed, 10 % were slow."""
    stable = [request("blue", at=n, fault=n == 0, total=150.0 if n % 10 == 1 else 20.0) for n in range(500)]
    state = watched(started(0.5), [*stable, *(replace(one, arm="green", on_trial=True) for one in stable[1:])])
    failing = of_candidate.get("errors", 0)
    times = of_candidate.get("times", 1.0)
    candidate = [
        request(
            "green", at=1000 + n, fault=n % 320 < failing and n % 7 != 0, total=times * (150.0 if n % 10 == 1 else 40.0)
        )
        for n in range(320)
    ]
    state = watched(begin_step(state, of_candidate.get("share", 0.98)), candidate)
    return state, decide(state, POLICY, 30.0)


@pytest.mark.parametrize("share", [0.98, 1.0])
@pytest.mark.parametrize(
    ("change", "worse"),
    [({"errors": 31}, "errors"), ({"times": 3.0}, "slow end to end")],
    ids=["8 % fail", "3 x as slow"],
)
def test_the_last_step_is_held_to_what_stable_showed_before(share, change, worse) -> None:
    _, decision = last_step(share=share, **change)
    assert decision.outcome is Outcome.REGRESSED
    assert [fact.name for fact in decision.judgement.evidence if fact.verdict is Verdict.NO_GO] == [worse]


@pytest.mark.parametrize("share", [0.98, 1.0])
def test_a_candidate_that_keeps_to_what_stable_showed_passes_the_last_step(share) -> None:
    assert last_step(share=share)[1].outcome is Outcome.PASS
    assert last_step(share=share, errors=2)[1].outcome is Outcome.PASS


def test_a_step_passes_only_on_data_that_kept_arriving_to_its_end() -> None:
    state, decision = last_step()
    assert decision.outcome is Outcome.PASS
    for _ in range(5):
        state = observe(state, window([], "green", LIMITS, 0.0))
    decision = decide(state, POLICY, 40.0)
    assert (decision.outcome, verdicts(decision)["data until the step's end"]) == (
        Outcome.CONTINUE,
        Verdict.INCONCLUSIVE,
    )
    assert decide(state, POLICY, 60.0).outcome is Outcome.UNDECIDED
    assert state.step is not None
    assert undecided_and_clean(state.step) is None
    state = watched(state, [request("green", at=2000 + number) for number in range(20)])
    assert decide(state, POLICY, 50.0).outcome is Outcome.PASS


def test_a_silence_that_little_traffic_explains_is_none() -> None:
    state = watched(started(0.5), [request(arm, at=60.0 * number) for number in range(20) for arm in ("blue", "green")])
    for _ in range(3):
        state = observe(state, window([], "green", LIMITS, 0.0))
    assert decide(state, POLICY, 30.0).outcome is Outcome.PASS


def test_errors_have_half_of_alpha_and_the_other_metrics_share_the_rest() -> None:
    _, decision = look(started(), mixed(50, 50))
    limits = {fact.name: fact.detail.rpartition("limit ")[2] for fact in decision.judgement.evidence[:3]}
    assert limits == {"errors": "40)", "slow first token": "80)", "slow end to end": "80)"}


def test_the_state_survives_storage() -> None:
    state, _ = look(started(), mixed(50, 50))
    assert AnalysisState.model_validate_json(state.model_dump_json()) == state


def limits_of(found: Thresholds | None) -> dict[str, list[tuple[str, float]]]:
    assert found is not None
    return {metric.name: [(limit.label, limit.value) for limit in metric.limits] for metric in found.metrics}


def test_slow_is_stables_quantiles_and_multiples_of_the_highest() -> None:
    found = fix_thresholds([request(total=float(number), first=number / 2) for number in range(1, 101)], POLICY)
    assert limits_of(found) == {
        "errors": [("", 0.0)],
        "slow first token": [("p50", 25.0), ("p90", 45.0), ("2 x p90", 90.0), ("4 x p90", 180.0), ("8 x p90", 360.0)],
        "slow end to end": [("p50", 50.0), ("p90", 90.0), ("2 x p90", 180.0), ("4 x p90", 360.0), ("8 x p90", 720.0)],
        "abandoned requests": [("", 0.0)],
    }


def test_the_99th_percentile_needs_500_requests_and_is_said_to_be_missing_before() -> None:
    few, enough = (fix_thresholds([request(total=float(n)) for n in range(count)], POLICY) for count in (499, 500))
    assert "p99" not in dict(limits_of(few)["slow end to end"])
    metrics = "slow first token, slow end to end"
    assert f"{metrics} beyond p99: 499 of stable's requests, 500 are needed" in few.left_out
    assert dict(limits_of(enough)["slow end to end"])["p99"] == 494.0
    assert not any("p99" in what for what in enough.left_out)


def test_too_little_traffic_fixes_no_threshold() -> None:
    assert fix_thresholds([request() for _ in range(19)], POLICY) is None


def test_without_streams_the_first_token_is_not_judged() -> None:
    found = fix_thresholds([request(streaming=False) for _ in range(50)], POLICY)
    assert found is not None
    assert found.first_token_milliseconds is None
    assert [metric.name for metric in begin(found, POLICY).metrics] == [
        "errors",
        "slow end to end",
        "abandoned requests",
    ]


@pytest.mark.slow
def test_good_candidates_pass_and_slow_ones_do_not_over_whole_canaries() -> None:
    good = [canary(random.Random(seed), delay=0.0) for seed in range(12)]  # noqa: S311
    slow = [canary(random.Random(seed), delay=60.0) for seed in range(6)]  # noqa: S311
    assert good.count(Outcome.PASS) >= 11
    assert slow.count(Outcome.REGRESSED) == 6


def canary(draws: random.Random, delay: float) -> Outcome:
    """A canary of 5, 25, 50 and 100 % at 20 requests a second with lognormal latencies, second by second."""

    def one(arm: str, at: float) -> ObservedRequest:
        total = math.exp(draws.gauss(3.0, 0.5)) + (delay if arm == "green" else 0.0)
        return request(arm, at=at, total=total, first=total / 2)

    thresholds = fix_thresholds([one("blue", 0.0) for _ in range(200)], POLICY)
    assert thresholds is not None
    state = begin(thresholds, POLICY)
    for share in (0.05, 0.25, 0.5, 1.0):
        state, second, outcome = begin_step(state, share), 0, Outcome.CONTINUE
        while outcome is Outcome.CONTINUE:
            second += 1
            now = [one("green" if draws.random() < share else "blue", second) for _ in range(20)]
            state = observe(state, window(now, "green", thresholds, 0.0))
            outcome = decide(state, POLICY, second).outcome
        if outcome is not Outcome.PASS:
            return outcome
    return Outcome.PASS


BUSY = CanaryPolicy(
    minimum_bake_seconds=6, maximum_bake_seconds=60, minimum_requests=12, slow_ratio=2.0, slow_quantiles=(0.5, 0.9)
)


def test_a_candidate_that_is_many_times_slower_is_seen_on_a_host_that_wavers_much() -> None:
    assert [busy_canary(random.Random(seed), delay=400.0) for seed in range(5)] == [Outcome.REGRESSED] * 5  # noqa: S311
    good = [busy_canary(random.Random(seed), delay=0.0) for seed in range(5)]  # noqa: S311
    assert good.count(Outcome.REGRESSED) == 0


def busy_canary(draws: random.Random, delay: float) -> Outcome:
    """A canary on a host whose load changes all latencies by a factor of several from second to second."""
    load = 0.0

    def second(share: float, at: float) -> list[ObservedRequest]:
        nonlocal load
        load = 0.7 * load + draws.gauss(0.0, 0.7)
        found = []
        for number in range(25):
            arm = "green" if draws.random() < share else "blue"
            total = 10.0 * math.exp(draws.gauss(0.0, 0.3) + load) + (delay if arm == "green" else 0.0)
            found.append(request(arm, at=at + number / 25, total=total, first=total / 2, client=f"{number % 7}"))
        return found

    before = [one for at in range(60) for one in second(0.0, float(at))]
    thresholds = fix_thresholds(before, BUSY)
    assert thresholds is not None
    state, now = begin(thresholds, BUSY), 60
    for share in (0.05, 0.25, 0.5, 1.0):
        state, elapsed, outcome = begin_step(state, share), 0, Outcome.CONTINUE
        while outcome is Outcome.CONTINUE:
            state = observe(state, window(second(share, float(now)), "green", thresholds, 0.0))
            now, elapsed = now + 1, elapsed + 1
            outcome = decide(state, BUSY, elapsed).outcome
        if outcome is not Outcome.PASS:
            return outcome
    return Outcome.PASS


def slow_second(at: float) -> list[ObservedRequest]:
    """A candidate that is many times slower than stable."""
    both = [request("blue", at=at + number / 20) for number in range(20)]
    return both + [request("green", at=at + number / 20, total=500.0, first=400.0) for number in range(20)]


def test_a_look_that_sees_nothing_changes_no_evidence() -> None:
    always = now_and_then = started()
    for second in range(25):
        seen = window(slow_second(1.8e9 + second), "green", LIMITS, 0.0)
        always = observe(always, seen)
        now_and_then = observe(observe(now_and_then, seen), window([], "green", LIMITS, 0.0))
    assert now_and_then.metrics == always.metrics
    assert decide(now_and_then, POLICY, 25.0).outcome is Outcome.REGRESSED


def test_a_clock_that_is_set_back_hides_no_slow_candidate() -> None:
    state = started()
    for second in range(45):
        at = 1.8e9 + second - (3600.0 if second >= 5 else 0.0)
        state = observe(state, window(slow_second(at), "green", LIMITS, 0.0))
    assert decide(state, POLICY, 45.0).outcome is Outcome.REGRESSED
