"""The comparison with production on simulated servers of known speed, on a host that slows down all the while."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from load_windows import Row, Source, answered, records

from llm_pipeline.base.verdict import Verdict, worst
from llm_pipeline.config.policy import LoadTestPolicy, Regression, ServiceLevel
from llm_pipeline.loadtest.records import Fault
from llm_pipeline.loadtest.regression import MEASURES, compare
from llm_pipeline.loadtest.traffic import LoadRequest, Traffic

REGRESSION = Regression(maximum_ratio=1.2, window_seconds=5, rounds=8)
POLICY = LoadTestPolicy(service_level=ServiceLevel(first_token_milliseconds=500), regression=REGRESSION)


class Host:
    """What both servers share: a clock that falls, and what was sent, in order."""

    def __init__(self, drift: float = 0.0, noise: float = 0.02, seed: int = 0) -> None:
        self.drift, self.noise, self.draws = drift, noise, np.random.default_rng(seed)
        self.sent: list[tuple[str, str]] = []

    def slowness(self) -> float:
        return float((1 + self.drift) ** len(self.sent) * np.exp(self.noise * self.draws.standard_normal()))


class Server:
    """Answers with known latencies; `lag` is the client's own fault."""

    def __init__(self, name: str, host: Host, *, slower: float = 1.0, failing: float = 0.0, lags=()) -> None:
        self.name, self.host, self.slower, self.failing = name, host, slower, failing
        self.lags = iter(lags)

    def send(self, traffic: Traffic):
        factor, draws = self.slower * self.host.slowness(), self.host.draws
        self.host.sent.append((self.name, traffic.requests))
        lag = next(self.lags, 0.0)
        rows = [self.answer(number, request, factor, lag, draws) for number, request in enumerate(traffic.requests)]
        return SimpleNamespace(records=records(rows), window_seconds=traffic.duration_seconds)

    def answer(self, number: int, request: LoadRequest, factor: float, lag: float, draws) -> Row:
        first = 0.04 * factor * float(np.exp(0.3 * draws.standard_normal()))
        tokens = request.maximum_tokens
        last = first + 0.005 * factor * tokens
        fault = Fault.SHED if draws.random() < self.failing else Fault.NONE
        return answered(
            number, lag_seconds=lag, first_token_seconds=first, last_token_seconds=last, total_seconds=last,
            output_tokens=tokens, asked_tokens=tokens, fault=fault,
        )  # fmt: skip


def compared(candidate: Server, production: Server, rate: float = 20.0):
    return {fact.name: fact for fact in compare(candidate, production, Source(), POLICY, rate, seed=7)}


def ratios(facts):
    return {name: fact for name, fact in facts.items() if name.endswith("relative to production")}


def servers(host: Host, **candidate):
    return Server("candidate", host, **candidate), Server("production", host)


def test_a_slower_candidate_is_caught_on_every_latency():
    facts = compared(*servers(Host(drift=0.03), slower=1.5))
    slow = {name for name, fact in facts.items() if fact.verdict is Verdict.NO_GO}
    assert slow == {f"{measure}, relative to production" for measure in MEASURES}
    assert all(fact.lower < 1.5 < fact.upper for fact in ratios(facts).values())


def test_an_equal_candidate_passes_although_the_host_slows_down_all_the_while():
    host = Host(drift=0.04)
    facts = compared(*servers(host))
    assert {fact.verdict for fact in facts.values()} == {Verdict.GO}
    assert len(ratios(facts)) == len(MEASURES)
    one_after_the_other = 1.04**REGRESSION.rounds
    assert one_after_the_other > REGRESSION.maximum_ratio, "all windows of one and then all of the other see that"


def test_both_get_the_same_traffic_with_a_fresh_seed_each_round_and_take_turns_at_being_first():
    host = Host()
    compared(*servers(host))
    measured = host.sent[2:]  # without the warm-up
    rounds = list(zip(measured[::2], measured[1::2], strict=True))
    assert [first[0] for first, _ in rounds[:5]] == ["candidate", "production"] * 2 + ["candidate"]
    assert all(first[0] != second[0] for first, second in rounds)
    assert all(first[1] == second[1] for first, second in rounds)
    assert len({requests for _, requests in host.sent}) == 1 + len(rounds)


def test_a_window_that_the_client_could_not_send_in_time_is_repeated():
    host = Host()
    facts = compared(*servers(host, lags=[0.0, 0.2]))
    assert {fact.verdict for fact in facts.values()} == {Verdict.GO}
    assert len(host.sent) == 2 * (1 + 1 + REGRESSION.rounds)


@pytest.mark.parametrize(
    ("production", "reason"),
    [({"failing": 0.3}, "Production's version failed"), ({"lags": itertools.repeat(0.2)}, "keep up")],
)
def test_without_usable_windows_of_production_it_is_inconclusive_and_says_why(production, reason):
    host = Host()
    facts = compared(Server("candidate", host), Server("production", host, **production))
    (fact,) = facts.values()
    assert fact.verdict is Verdict.INCONCLUSIVE
    assert not ratios(facts)
    assert reason in fact.detail


@pytest.mark.parametrize("failing", [0.1, 1.0])
def test_a_candidate_that_sheds_what_production_answers_is_not_flattered(failing):
    facts = compared(*servers(Host(), failing=failing))
    assert facts["failed requests beside production"].verdict is Verdict.NO_GO


def test_nothing_at_all_is_no_pass():
    facts = compared(*servers(Host()), rate=1)
    assert worst(fact.verdict for fact in facts.values()) is Verdict.INCONCLUSIVE
    assert "window_seconds" in facts["comparison with production"].detail
