"""The traffic of a load test: which requests, how long, and when they arrive."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from llm_pipeline.config.model import ConfigModel, Fraction, PathText, PositiveSeconds, Rate, Seed, Tokens


class LognormalLengths(ConfigModel):
    """Most lengths near the median, a few very long: what chat traffic looks like.

    Attributes:
        median: Half of the lengths are below.
        p95: One length in twenty is above, before the cut at `maximum`.
        minimum: Shorter ones are raised to it.
        maximum: Longer ones are cut to it.
    """

    kind: Literal["lognormal"] = "lognormal"
    median: Tokens
    p95: Tokens
    minimum: Tokens = 1
    maximum: Tokens

    @model_validator(mode="after")
    def _are_in_order(self) -> LognormalLengths:
        if not self.minimum <= self.median < self.p95 or self.median > self.maximum:
            raise ValueError("minimum <= median < p95 and median <= maximum must hold")
        return self


class RecordedLengths(ConfigModel):
    """The lengths that the file of prompts has.

    Attributes:
        maximum: Longer ones are cut to it.
    """

    kind: Literal["recorded"] = "recorded"
    maximum: Tokens


Lengths = tuple[Tokens, Tokens] | Annotated[LognormalLengths | RecordedLengths, Field(discriminator="kind")]
"""Smallest and largest, each length between them as likely, or a distribution."""


class SharedPrefixes(ConfigModel):
    """System prompts: the only part of a prompt that a prefix cache may have seen before.

    Attributes:
        share: Requests that begin with a shared prefix.
        prefixes: How many different ones there are.
        tokens: Length of each.
    """

    share: Fraction
    prefixes: Annotated[int, Field(ge=1, le=100_000)] = 1
    tokens: Tokens = 256


class Workload(ConfigModel):
    """The load test's traffic. The same seed gives the same requests at the same times; all answers are streamed.

    Prompts that are taken as they are come once in a window, and may come again in the next one; made-up ones (with
    `prompt_tokens`) are new in every window.

    Attributes:
        prompts: A jsonl file, relative to `configs/`, with a `prompt` field in each line, and `output_tokens` for
            lengths that are `recorded`.
        rate_per_second: Mean arrival rate: what production is expected to send.
        duration_seconds: Length of the measured window at that rate.
        burstiness: Coefficient of variation of the times between arrivals: 1 is a Poisson process (users who do not
            know of one another, MLPerf's server scenario), 2 has bursts and lulls.
        prompt_tokens: Lengths of prompts, which are joined and cut from the file's texts; None takes them as they are.
        output_tokens: `max_tokens` asked for: smallest and largest, or a distribution.
        shared_prefixes: Prompts that begin alike, each followed by a prompt of `prompt_tokens`; without them every
            prompt is new to a prefix cache.
        cancelled_share: Requests whose user leaves half-way, of all; they are not judged.
        seed: Seed of all draws of the first attempt; a load test that is tried again draws anew.
    """

    prompts: PathText
    rate_per_second: Rate
    duration_seconds: PositiveSeconds
    burstiness: Annotated[float, Field(ge=0.01, le=10.0)] = 1.0
    prompt_tokens: Lengths | None = None
    output_tokens: Lengths = (4, 16)
    shared_prefixes: SharedPrefixes | None = None
    cancelled_share: Fraction = 0.0
    seed: Seed = 0

    @model_validator(mode="after")
    def _lengths_are_ranges(self) -> Workload:
        for name in ("prompt_tokens", "output_tokens"):
            lengths = getattr(self, name)
            if isinstance(lengths, tuple) and not 1 <= lengths[0] <= lengths[1]:
                raise ValueError(f"{name} is no range: the smallest first, 1 or more")
        return self


def longest(lengths: Lengths) -> int:
    """The longest that can be drawn, in tokens."""
    return lengths[1] if isinstance(lengths, tuple) else lengths.maximum
