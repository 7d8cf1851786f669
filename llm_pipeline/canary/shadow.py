"""Compares the candidate's answers with stable's before its first user: the same prompts are sent to both.

A router discards the answers to mirrored requests, so mirroring warms a candidate up and shows its speed, but not what
it answers. Here both slots are asked directly, at a low, bounded rate.

Failures, empty answers and checks are compared by the exact sign test on the prompts where the arms differ (McNemar
1947): prompts that both fail do not count. Agreement is a mean of fractions, with bounds that hold for any number of
prompts (see `statistics.evalue`); lengths are compared pair by pair, by the mean of the logarithms of their ratios.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np

from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Evidence, Verdict
from llm_pipeline.canary.router import SlotName
from llm_pipeline.canary.slots import slot_endpoint, slot_servers
from llm_pipeline.config.deployment import TargetPlace
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.config.shadow import AnswerCheck, Matches, ShadowPolicy
from llm_pipeline.loadtest.prompts import read_prompts
from llm_pipeline.serving.client import Generation, GenerationClient, GenerationRequest
from llm_pipeline.statistics.evalue import BETTING_TEST
from llm_pipeline.statistics.intervals import binomial_tail, critical_value
from llm_pipeline.statistics.losses import LossSample

log = get_logger(__name__)

MOST_AT_ONCE = 4
"""Prompts in flight: a slow slot is asked more slowly, not with more at once."""


@dataclass(frozen=True)
class Shadow:
    """The comparison of a target's two slots, ready to run.

    Attributes:
        endpoints: Where the slots answer, not the router.
        prompts: What users may ask.
    """

    endpoints: Mapping[SlotName, Endpoint]
    prompts: tuple[str, ...]
    policy: ShadowPolicy

    def compare(
        self, stable: SlotName, candidate: SlotName, keep_going: Callable[[], None] = lambda: None
    ) -> tuple[Evidence, ...]:
        """Send the same prompts to both versions and compare their answers.

        It takes about `prompts / requests_per_second` seconds, and `timeout_seconds` longer at most: prompts that a
        slow arm leaves no time for are not asked.

        Args:
            stable: The slot that serves users.
            candidate: The slot on trial.
            keep_going: Called before every prompt; what it raises ends the comparison (a lost lease).

        Returns:
            One fact for each measure: NO_GO where a difference beyond the policy is shown, INCONCLUSIVE with too few
            answers.

        Raises:
            ConfigError: A header's variable is not set, or the certificates cannot be read.
        """
        asked = sample(self.prompts, self.policy.prompts)
        arms = self.endpoints[stable], self.endpoints[candidate]
        pairs = asyncio.run(_ask_both(*arms, asked, self.policy, keep_going))
        log.info("sent the shadow prompts to both versions", prompts=len(asked), finished=len(pairs))
        return compare_answers(pairs, self.policy)


def shadow_of(policy: CanaryPolicy, place: TargetPlace, prompts: Path) -> Shadow | None:
    """The comparison that a policy asks for between the slots of a place; None if it asks for none.

    Args:
        policy: The canary's.
        place: The slots.
        prompts: A jsonl file, as of a workload.

    Raises:
        ConfigError: The prompts cannot be read.
    """
    if policy.shadow is None:
        return None
    endpoints = {slot: slot_endpoint(server) for slot, server in slot_servers(place).items()}
    return Shadow(endpoints, tuple(prompt.text for prompt in read_prompts(prompts)), policy.shadow)


def sample(prompts: Sequence[str], count: int) -> list[str]:
    """This many different prompts, spread evenly over the file, which may be sorted; always the same sample."""
    distinct = list(dict.fromkeys(prompts))
    if count >= len(distinct):
        return distinct
    return [distinct[number * len(distinct) // count] for number in range(count)]


async def _ask_both(
    stable: Endpoint,
    candidate: Endpoint,
    prompts: Sequence[str],
    policy: ShadowPolicy,
    keep_going: Callable[[], None],
) -> list[Pair]:
    """The pairs of answers to the prompts that were begun in time."""
    async with AsyncExitStack() as stack:
        theirs, mine = [
            await stack.enter_async_context(GenerationClient.of(arm, timeout_seconds=policy.timeout_seconds))
            for arm in (stable, candidate)
        ]
        free = asyncio.Semaphore(MOST_AT_ONCE)
        begun: list[asyncio.Task[Pair]] = []
        clock = asyncio.get_running_loop().time
        start, most_seconds = clock(), len(prompts) / policy.requests_per_second
        try:
            for number, prompt in enumerate(prompts):
                await asyncio.sleep(start + number / policy.requests_per_second - clock())
                await free.acquire()
                if clock() - start > most_seconds:
                    break
                keep_going()
                begun.append(asyncio.create_task(_pair(theirs, mine, prompt, policy)))
                begun[-1].add_done_callback(lambda _: free.release())
            return list(await asyncio.gather(*begun))
        finally:
            for task in begun:
                task.cancel()


async def _pair(theirs: GenerationClient, mine: GenerationClient, prompt: str, policy: ShadowPolicy) -> Pair:
    request = GenerationRequest(prompt, policy.maximum_tokens, temperature=0.0, allow_empty=True)
    stable, candidate = await asyncio.gather(theirs.generate(request), mine.generate(request))
    return Pair(stable, candidate)


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
