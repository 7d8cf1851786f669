"""The traffic of a load test: which requests, how long, and when they arrive."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from llm_pipeline.config.model import (
    ConfigModel,
    Fraction,
    ItemsOrNone,
    PathText,
    PositiveFraction,
    PositiveSeconds,
    PriorityLevel,
    Rate,
    Seed,
    Tokens,
)


class UniformLengths(ConfigModel):
    """Any length between two, each as likely."""

    kind: Literal["uniform"] = "uniform"
    minimum: Tokens
    maximum: Tokens

    @model_validator(mode="after")
    def _is_a_range(self) -> UniformLengths:
        if self.minimum > self.maximum:
            raise ValueError("minimum is above maximum")
        return self


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
    """The lengths that the file of prompts or the trace names.

    Attributes:
        maximum: Longer ones are cut to it.
    """

    kind: Literal["recorded"] = "recorded"
    maximum: Tokens


Lengths = Annotated[UniformLengths | LognormalLengths | RecordedLengths, Field(discriminator="kind")]


class PoissonArrivals(ConfigModel):
    """Users who do not know of one another: MLPerf's server scenario."""

    kind: Literal["poisson"] = "poisson"


class ConstantArrivals(ConfigModel):
    """One request every 1/rate seconds."""

    kind: Literal["constant"] = "constant"


class GammaArrivals(ConfigModel):
    """Bursts and lulls.

    Attributes:
        burstiness: Coefficient of variation of the gaps: 1 is Poisson, 0 constant, 2 bursty.
    """

    kind: Literal["gamma"] = "gamma"
    burstiness: Annotated[float, Field(gt=0.0, le=10.0)] = 2.0


class RampArrivals(ConfigModel):
    """A Poisson process whose rate rises linearly; its mean over the window is the workload's rate.

    Attributes:
        first_share: Rate at the start, as a share of the mean; the last one is 2 - `first_share`.
    """

    kind: Literal["ramp"] = "ramp"
    first_share: Fraction = 0.2


Arrivals = Annotated[PoissonArrivals | ConstantArrivals | GammaArrivals | RampArrivals, Field(discriminator="kind")]


class Trace(ConfigModel):
    """Recorded traffic: when requests came and how long they were; prompts are made up to those lengths.

    Attributes:
        file: Relative to `configs/`.
        format: `mooncake` (jsonl with `timestamp` in ms, `input_length`, `output_length`, `hash_ids`: equal ids are
            equal blocks of 512 tokens, which share a prefix) or `burstgpt` (CSV with `Timestamp` in seconds,
            `Request tokens`, `Response tokens`).
        first_second: Where the replay starts in the trace.
        shape: `times` replays the recorded arrivals, scaled to the workload's rate; `lengths` takes only the lengths.
    """

    file: PathText
    format: Literal["mooncake", "burstgpt"]
    first_second: Annotated[float, Field(ge=0.0, le=31_622_400.0)] = 0.0
    shape: Literal["times", "lengths"] = "times"


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
    """The load test's traffic. The same seed gives the same requests at the same times.

    Prompts that are taken as they are come once in a window, and may come again in the next one; made-up ones (with
    `prompt_tokens`) are new in every window. A trace that is replayed has the same times and lengths for every seed.

    Attributes:
        prompts: A jsonl file, relative to `configs/`, with a `prompt` field in each line, and `output_tokens` for
            lengths that are `recorded`.
        rate_per_second: Mean arrival rate: what production is expected to send.
        duration_seconds: Length of the measured window at that rate.
        arrivals: When requests come.
        trace: Recorded traffic in place of drawn arrivals and lengths; both lengths must then be `recorded`.
        prompt_tokens: Lengths of prompts, which are joined and cut from the file's texts; None takes them as they are.
        output_tokens: `max_tokens` asked for: smallest and largest, or a distribution.
        shared_prefixes: Prompts that begin alike, each followed by a prompt of `prompt_tokens`; without them every
            prompt is new to a prefix cache.
        priorities: Share of requests by priority level, 1 being the most urgent; empty for none. Triton hands them to
            the model as a parameter; its generate API, unlike `infer`, orders no queue of its own by them.
        streaming_share: Requests whose answer is streamed.
        cancelled_share: Requests whose user leaves half-way, of all; they are streamed ones, and are not judged.
        warmup_requests: Least requests before the first window.
        seed: Seed of all draws of the first attempt; a load test that is tried again draws anew.
    """

    prompts: PathText
    rate_per_second: Rate
    duration_seconds: PositiveSeconds
    arrivals: Arrivals = PoissonArrivals()
    trace: Trace | None = None
    prompt_tokens: Lengths | None = None
    output_tokens: tuple[Tokens, Tokens] | Lengths = (4, 16)
    shared_prefixes: SharedPrefixes | None = None
    priorities: Annotated[dict[PriorityLevel, PositiveFraction], Field(max_length=1000)] = Field(default={})
    streaming_share: Fraction = 1.0
    cancelled_share: Fraction = 0.0
    warmup_requests: ItemsOrNone = 10
    seed: Seed = 0

    @model_validator(mode="after")
    def _fits_together(self) -> Workload:
        if isinstance(self.output_tokens, tuple) and not 1 <= self.output_tokens[0] <= self.output_tokens[1]:
            raise ValueError("output_tokens is no range: the smallest first, 1 or more")
        if self.priorities and not math.isclose(sum(self.priorities.values()), 1.0, abs_tol=1e-6):
            raise ValueError("the shares of priorities must sum to 1")
        return self
