"""Both arms asked the same prompts before the first user: two real HTTP servers, and the facts of what they answer."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from llm_pipeline.base.errors import Transient
from llm_pipeline.base.verdict import Evidence, Verdict
from llm_pipeline.canary.judgements import shadow_judgement
from llm_pipeline.canary.shadow import (
    MOST_AT_ONCE,
    Pair,
    Shadow,
    agreement,
    compare_answers,
    sample,
    shadow_of,
)
from llm_pipeline.config.deployment import ServerPorts, TargetPlace
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.config.shadow import Matches, NotMatches, ShadowPolicy
from llm_pipeline.serving.client import Generation

PROMPTS = [f"question {number}" for number in range(40)]
FAST = ShadowPolicy(prompts=40, requests_per_second=100.0, timeout_seconds=2.0, maximum_tokens=16)

Answer = Callable[[str], str | None]
"""The answer to a prompt; None for a refusal."""


class Arm:
    """A server that answers like Triton's `generate`, and remembers what it was asked."""

    def __init__(self, answer: Answer, *, seconds: float = 0.0) -> None:
        self.asked: list[tuple[float, dict[str, Any]]] = []
        self.most_at_once = 0
        at_once = 0
        lock = threading.Lock()
        arm = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                nonlocal at_once
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with lock:
                    arm.asked.append((time.monotonic(), body))
                    at_once += 1
                    arm.most_at_once = max(arm.most_at_once, at_once)
                time.sleep(seconds)
                with lock:
                    at_once -= 1
                text = answer(body["text_input"])
                told = {"error": "no"} if text is None else _told(text, body["max_tokens"])
                data = json.dumps(told).encode()
                self.send_response(400 if text is None else 200)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = Endpoint(url=f"http://127.0.0.1:{self.server.server_port}")


def _told(text: str, most: int) -> dict[str, object]:
    tokens = len(text.split())
    return {"text_output": text, "output_tokens": tokens, "finish_reason": "length" if tokens == most else "stop"}


@contextmanager
def serving(*arms: Arm) -> Iterator[None]:
    threads = [threading.Thread(target=arm.server.serve_forever, args=(0.02,)) for arm in arms]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for arm, thread in zip(arms, threads, strict=True):
            arm.server.shutdown()
            thread.join()
            arm.server.server_close()


def shadow(arms: tuple[Arm, Arm], policy: ShadowPolicy) -> Shadow:
    return Shadow({"blue": arms[0].endpoint, "green": arms[1].endpoint}, tuple(PROMPTS), policy)


def asked(stable: Answer, candidate: Answer, policy: ShadowPolicy = FAST) -> dict[str, Evidence]:
    """The facts by name, as two versions answer; without servers, so that a busy host leaves no prompt out."""
    prompts = sample(PROMPTS, policy.prompts)
    pairs = [Pair(received(stable(prompt)), received(candidate(prompt))) for prompt in prompts]
    return {fact.name.removeprefix("shadow: "): fact for fact in compare_answers(pairs, policy)}


def received(text: str | None) -> Generation:
    return Generation(error="HTTP 400: no", status=400) if text is None else generated(text)


def essay(prompt: str) -> str:
    return f"the answer to {prompt} is a short text of ten"


def unlucky(prompt: str, answer: str | None) -> str | None:
    """Another answer to every third prompt."""
    return answer if int(prompt.split()[1]) % 3 == 0 else essay(prompt)


def generated(text: str) -> Generation:
    return Generation(text=text, output_tokens=len(text.split()), finish_reason="stop")


def verdicts(facts: dict[str, Evidence]) -> set[Verdict]:
    return {fact.verdict for fact in facts.values()}


def test_a_candidate_that_answers_as_stable_does_passes_every_comparison() -> None:
    facts = asked(essay, essay, FAST.model_copy(update={"checks": (Matches(matches="answer"),)}))
    assert list(facts) == [
        "prompts answered",
        "answers that are not empty",
        "answers that match 'answer'",
        "words in common",
        "length ratio, candidate to stable",
    ]
    assert verdicts(facts) == {Verdict.GO}
    assert facts["words in common"].measured == 1.0
    assert facts["words in common"].detail.startswith("40 of 40 answers are equal")
    assert shadow_judgement(facts.values()).summary == "answers as stable does"


@pytest.mark.parametrize(
    ("candidate", "worse"),
    [
        (lambda prompt: unlucky(prompt, None), "prompts answered"),
        (lambda prompt: unlucky(prompt, ""), "answers that are not empty"),
        (lambda _: "nonsense " * 10, "words in common"),
        (lambda prompt: f"{essay(prompt)} and more and more", "length ratio, candidate to stable"),
        (lambda _: "the answer", "length ratio, candidate to stable"),
    ],
    ids=["fails", "empty", "nonsense", "long", "short"],
)
def test_what_a_worse_candidate_does_condemns_it(candidate: Answer, worse: str) -> None:
    policy = FAST.model_copy(update={"maximum_length_ratio": 1.2})
    facts = asked(essay, candidate, policy)
    assert facts[worse].verdict is Verdict.NO_GO
    judgement = shadow_judgement(facts.values())
    assert judgement.verdict is Verdict.NO_GO
    assert worse in judgement.summary


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        ("json", '{"a": 1}', '{"a": NaN}'),
        (Matches(matches=r"^yes\b"), "yes indeed", "well yes"),
        (NotMatches(not_matches=r"(?i)i cannot"), "sure", "I cannot do that"),
    ],
    ids=["json", "matches", "not matches"],
)
def test_answers_are_checked_where_stable_passes_the_check(check: Any, good: str, bad: str) -> None:
    policy = ShadowPolicy(checks=(check,))

    def verdict(stable: str, candidate: str) -> Verdict:
        pairs = [Pair(generated(stable), generated(candidate))] * 40
        return compare_answers(pairs, policy)[2].verdict

    assert verdict(good, good) is Verdict.GO
    assert verdict(good, bad) is Verdict.NO_GO
    assert verdict(bad, bad) is Verdict.INCONCLUSIVE  # stable fails it, too
    assert verdict(bad, good) is Verdict.INCONCLUSIVE


def test_few_answers_say_nothing_and_condemn_nobody() -> None:
    facts = asked(essay, lambda _: "the answer", FAST.model_copy(update={"prompts": 5}))
    assert verdicts(facts) == {Verdict.INCONCLUSIVE}
    assert "too few, 20 are needed" in facts["words in common"].detail
    assert shadow_judgement(facts.values()).verdict is Verdict.INCONCLUSIVE


def test_how_many_pairs_are_few_is_the_policys() -> None:
    facts = asked(essay, essay, FAST.model_copy(update={"prompts": 5, "minimum_pairs": 5}))
    assert "too few" not in facts["words in common"].detail


def test_a_stable_that_fails_itself_condemns_nobody() -> None:
    facts = asked(lambda _: None, essay)
    assert Verdict.NO_GO not in verdicts(facts)
    assert facts["words in common"].samples == 0


def test_both_arms_are_asked_greedily_at_a_bounded_rate() -> None:
    arms = Arm(essay), Arm(essay)
    policy = FAST.model_copy(update={"prompts": 20, "requests_per_second": 40.0})
    with serving(*arms):
        facts = shadow(arms, policy).compare("blue", "green")
    assert facts[0].measured == 1.0
    for arm in arms:
        assert 1 <= len(arm.asked) <= 20  # a busy host may leave no time for the last ones
        assert {(body["temperature"], body["max_tokens"], body["stream"]) for _, body in arm.asked} == {
            (0.0, 16, False)
        }
        assert arm.asked[-1][0] - arm.asked[0][0] > 0.5 * (len(arm.asked) - 1) / 40 - 0.1
    assert {body["text_input"] for _, body in arms[0].asked} == {body["text_input"] for _, body in arms[1].asked}


def test_a_slow_arm_is_asked_less_not_more_at_once_and_time_is_bounded() -> None:
    arms = Arm(essay), Arm(essay, seconds=1.0)
    patient = FAST.model_copy(update={"timeout_seconds": 10.0})
    began = time.monotonic()
    with serving(*arms):
        facts = shadow(arms, patient).compare("blue", "green")
    assert time.monotonic() - began < 8.0  # all prompts would take ten seconds
    assert arms[1].most_at_once <= MOST_AT_ONCE
    assert 1 <= facts[0].samples < 20
    assert {fact.verdict for fact in facts} == {Verdict.INCONCLUSIVE}


def test_a_controller_that_lost_its_lease_stops_asking() -> None:
    arms = Arm(essay), Arm(essay)

    def lost() -> None:
        if arms[0].asked:
            raise Transient("taken over")

    with serving(*arms), pytest.raises(Transient, match="taken over"):
        shadow(arms, FAST).compare("blue", "green", lost)
    assert len(arms[0].asked) < 10


def test_the_sample_is_spread_over_the_file_and_the_same_for_everybody() -> None:
    assert sample(PROMPTS, 4) == ["question 0", "question 10", "question 20", "question 30"]
    assert sample([*PROMPTS, *PROMPTS], 100) == PROMPTS


def test_a_policy_opens_the_comparison_of_a_places_slots(tmp_path: Path) -> None:
    arms = Arm(essay), Arm(lambda _: None)
    blue, green = (ServerPorts(http=arm.server.server_port, grpc=20001, metrics=20002) for arm in arms)
    place = TargetPlace.model_construct(blue=blue, green=green)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    shadow = shadow_of(CanaryPolicy(shadow=FAST), place, prompts)
    assert shadow is not None
    with serving(*arms):
        facts = shadow.compare("blue", "green")
    assert (facts[0].verdict, facts[0].measured) == (Verdict.NO_GO, 0.0)
    assert shadow_of(CanaryPolicy(), place, prompts) is None


def test_agreement_counts_words_in_order() -> None:
    assert agreement("a b c d", "a b x d") == 0.75
    assert agreement("a b", "b a") == 0.5
    assert agreement("", " ") == 1.0
    assert agreement("a", "") == 0.0


def test_the_bounds_of_what_is_in_common_hold_the_truth() -> None:
    draw = random.Random(1)  # noqa: S311
    wrong = 0
    for _ in range(100):
        pairs = [Pair(generated("same"), generated(draw.choice(("same", "other")))) for _ in range(40)]
        fact = compare_answers(pairs, ShadowPolicy(minimum_agreement=0.5))[2]
        assert fact.name == "shadow: words in common"
        assert fact.lower is not None
        assert fact.upper is not None
        assert 0.0 < fact.upper - fact.lower < 0.6
        wrong += not fact.lower <= 0.5 <= fact.upper
    assert wrong <= 3


def test_a_policy_names_its_checks_as_people_write_them() -> None:
    given = {"prompts": 30, "checks": ["json", {"matches": "^yes"}, {"not_matches": "(?i)sorry"}]}
    policy = CanaryPolicy.model_validate({"shadow": given}).shadow
    assert policy is not None
    assert policy.checks == ("json", Matches(matches="^yes"), NotMatches(not_matches="(?i)sorry"))
    assert CanaryPolicy().shadow is None
    with pytest.raises(ValidationError, match="not a regular expression"):
        TypeAdapter(ShadowPolicy).validate_python({"checks": [{"matches": "("}]})
