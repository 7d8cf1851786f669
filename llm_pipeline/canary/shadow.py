"""Compares the candidate's answers with stable's before its first user: the same prompts are sent to both.

A router discards the answers to mirrored requests, so mirroring warms a candidate up and shows its speed, but not what
it answers. Here both slots are asked directly, at a low, bounded rate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.canary.router import SlotName
from llm_pipeline.canary.shadow_evidence import Pair, compare_answers
from llm_pipeline.canary.slots import slot_endpoint, slot_servers
from llm_pipeline.config.deployment import TargetPlace
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.config.shadow import ShadowPolicy
from llm_pipeline.loadtest.prompts import read_prompts
from llm_pipeline.serving.client import GenerationClient, GenerationRequest

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
        """Send the same prompts to both versions and compare their answers; `keep_going` is called between prompts."""
        arms = self.endpoints[stable], self.endpoints[candidate]
        return shadow_compare(*arms, self.prompts, self.policy, keep_going=keep_going)


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


def shadow_compare(
    stable: Endpoint,
    candidate: Endpoint,
    prompts: Sequence[str],
    policy: ShadowPolicy,
    *,
    keep_going: Callable[[], None] = lambda: None,
) -> tuple[Evidence, ...]:
    """Send the prompts to both versions and compare the answers.

    It takes about `prompts / requests_per_second` seconds, and `timeout_seconds` longer at most: prompts that a slow
    arm leaves no time for are not asked.

    Args:
        stable: The slot that serves users, not the router.
        candidate: The slot on trial.
        prompts: What users may ask; a sample of them is.
        policy: How much is asked, and what must hold.
        keep_going: Called before every prompt; what it raises ends the comparison (a lost lease).

    Returns:
        One fact for each measure: NO_GO where a difference beyond the policy is shown, INCONCLUSIVE with too few
        answers.

    Raises:
        ConfigError: A header's variable is not set, or the certificates cannot be read.
    """
    asked = sample(prompts, policy.prompts)
    pairs = asyncio.run(_ask_both(stable, candidate, asked, policy, keep_going))
    log.info("both versions were asked", prompts=len(asked), finished=len(pairs))
    return compare_answers(pairs, policy)


def shadow_judgement(facts: Iterable[Evidence]) -> Judgement:
    """The comparison as a judgement: NO_GO rejects the candidate, INCONCLUSIVE means too little data."""
    found = judge("", facts)
    others = [fact.name for fact in found.evidence if fact.verdict is found.verdict]
    words = {
        Verdict.GO: "answers as stable does",
        Verdict.NO_GO: f"answers differ from stable's before the first step ({', '.join(others)})",
    }.get(found.verdict, f"answers were compared with stable's, undecided ({', '.join(others)})")
    return found.model_copy(update={"summary": words})


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
