"""The evidence from pairs of answers to the same prompts. Pure functions.

Failures, empty answers and checks are compared by the exact sign test on the prompts where the arms differ (McNemar
1947): prompts that both fail do not count. Agreement is a mean of fractions, with bounds that hold for any number of
prompts (see `accuracy.evalue`); lengths are compared pair by pair, by the mean of the logarithms of their ratios.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from llm_pipeline.base.verdict import Evidence, Verdict
from llm_pipeline.config.shadow import AnswerCheck, Matches, ShadowPolicy
from llm_pipeline.serving.client import Generation
from llm_pipeline.statistics.evalue import BETTING_TEST
from llm_pipeline.statistics.intervals import binomial_tail, critical_value
from llm_pipeline.statistics.losses import LossSample

Holds = Callable[[Generation], bool]


@dataclass(frozen=True)
class Pair:
    """Both arms' answers to one prompt."""

    stable: Generation
    candidate: Generation

    @property
    def answered(self) -> bool:
        """Whether there are two answers to compare."""
        return self.stable.ok and self.candidate.ok


def compare_answers(pairs: Sequence[Pair], policy: ShadowPolicy) -> tuple[Evidence, ...]:
    """One fact for each measure; `alpha` is split evenly over them."""
    answered = [pair for pair in pairs if pair.answered]
    level = policy.alpha / (4 + len(policy.checks))
    named: list[tuple[str, Holds]] = [
        ("shadow: answers that are not empty", lambda answer: bool(answer.text.strip())),
        *((f"shadow: {check_in_words(check)}", _holds(check)) for check in policy.checks),
    ]
    return (
        _paired("shadow: prompts answered", pairs, lambda answer: answer.ok, level, policy.minimum_pairs),
        *(_paired(name, answered, holds, level, policy.minimum_pairs) for name, holds in named),
        _agreement(answered, level, policy),
        _lengths(answered, level, policy),
    )


def agreement(one: str, other: str) -> float:
    """Share of the words of two answers that they have in common, in order; 1 for two without a word."""
    return SequenceMatcher(None, one.split(), other.split(), autojunk=False).ratio()


def check_in_words(check: AnswerCheck) -> str:
    """`answers that are JSON`, `answers that match '^yes'`."""
    if check == "json":
        return "answers that are JSON"
    if isinstance(check, Matches):
        return f"answers that match {check.matches!r}"
    return f"answers that do not match {check.not_matches!r}"


def _holds(check: AnswerCheck) -> Holds:
    if check == "json":
        return lambda answer: _is_json(answer.text)
    if isinstance(check, Matches):
        wanted = re.compile(check.matches)
        return lambda answer: wanted.search(answer.text) is not None
    unwanted = re.compile(check.not_matches)
    return lambda answer: unwanted.search(answer.text) is None


def _is_json(text: str) -> bool:
    """Strict JSON: no `NaN` or `Infinity`, which Python would accept."""
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _paired(name: str, pairs: Sequence[Pair], holds: Holds, level: float, least: int) -> Evidence:
    """NO_GO if it holds for stable alone more often than chance allows; it must hold for stable often enough."""
    mine = [holds(pair.candidate) for pair in pairs]
    theirs = [holds(pair.stable) for pair in pairs]
    lost = sum(there and not here for here, there in zip(mine, theirs, strict=True))
    gained = sum(here and not there for here, there in zip(mine, theirs, strict=True))
    chance = binomial_tail(lost, lost + gained, 0.5)
    otherwise = Verdict.GO if sum(theirs) >= least else Verdict.INCONCLUSIVE
    return Evidence(
        name=name,
        verdict=Verdict.NO_GO if chance <= level else otherwise,
        measured=sum(mine) / len(pairs) if pairs else None,
        limit=sum(theirs) / len(pairs) if pairs else None,
        unit="fraction",
        samples=len(pairs),
        detail=(
            f"candidate {sum(mine)} of {len(pairs)}, stable {sum(theirs)}; {lost} with stable only, {gained} with the "
            f"candidate only: chance {chance:.2g} (limit {level:.2g}){_few(sum(theirs), least)}"
        ),
    )


def _agreement(pairs: Sequence[Pair], level: float, policy: ShadowPolicy) -> Evidence:
    name, least = "shadow: words in common", policy.minimum_agreement
    if not pairs:
        return _nothing(name, least, "fraction")
    shares = [agreement(pair.stable.text, pair.candidate.text) for pair in pairs]
    found = BETTING_TEST.bounds(LossSample(1.0 - np.array(shares), graded=True), 1.0 - level)
    lower, upper = max(0.0, 1.0 - found.upper), min(1.0, 1.0 - found.lower)
    same = sum(pair.stable.text == pair.candidate.text for pair in pairs)
    return Evidence(
        name=name,
        verdict=_verdict(len(pairs), policy, within=lower >= least, beyond=upper < least),
        measured=1.0 - found.estimate,
        lower=lower,
        upper=upper,
        limit=least,
        unit="fraction",
        samples=len(pairs),
        detail=f"{same} of {len(pairs)} answers are equal{_few(len(pairs), policy.minimum_pairs)}",
    )


def _lengths(pairs: Sequence[Pair], level: float, policy: ShadowPolicy) -> Evidence:
    """Length ratios of answers with at least one token on both sides; empty answers have their own measure."""
    name, most = "shadow: length ratio, candidate to stable", policy.maximum_length_ratio
    logs = list(_log_ratios(pairs))
    if len(logs) < 2:  # noqa: PLR2004 - one has no spread
        return _nothing(name, most, "")
    mean, spread = float(np.mean(logs)), float(np.std(logs, ddof=1))
    reach = critical_value(1.0 - level, len(logs) - 1) * spread / math.sqrt(len(logs))
    lower, upper = math.exp(mean - reach), math.exp(mean + reach)
    within, beyond = lower >= 1.0 / most and upper <= most, lower > most or upper < 1.0 / most
    return Evidence(
        name=name,
        verdict=_verdict(len(logs), policy, within=within, beyond=beyond),
        measured=math.exp(mean),
        lower=lower,
        upper=upper,
        limit=most,
        samples=len(logs),
        detail=f"tolerated from {1.0 / most:.3g} to {most:.3g}{_few(len(logs), policy.minimum_pairs)}",
    )


def _log_ratios(pairs: Sequence[Pair]) -> Iterator[float]:
    for pair in pairs:
        if pair.stable.output_tokens and pair.candidate.output_tokens:
            yield math.log(pair.candidate.output_tokens / pair.stable.output_tokens)


def _verdict(samples: int, policy: ShadowPolicy, *, within: bool, beyond: bool) -> Verdict:
    if samples < policy.minimum_pairs or within == beyond:
        return Verdict.INCONCLUSIVE
    return Verdict.GO if within else Verdict.NO_GO


def _few(found: int, least: int) -> str:
    return "" if found >= least else f"; too few, {least} are needed"


def _nothing(name: str, limit: float, unit: str) -> Evidence:
    return Evidence(name=name, verdict=Verdict.INCONCLUSIVE, limit=limit, unit=unit, detail="too few answers")
