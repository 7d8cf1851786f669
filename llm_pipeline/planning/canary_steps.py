"""A canary's steps before it starts, as data: what each of them can catch and prove at the expected traffic."""

from __future__ import annotations

from llm_pipeline.base.records import Frozen

POWER = 0.9
SERIOUS_RISE = 50.0
"""A step should catch at least this rise of errors: at 0.2 % before, one request in ten fails."""

KIND_SHARE = 0.02
"""Of the traffic: a rare kind of requests, such as the few that are streamed."""

WAVERING = 0.2
"""Standard deviation of the log odds of a slow request at one server, for longer than a step: what it costs is told."""


class Caught(Frozen):
    """What would be caught with a power of 0.9 in so much time at a step.

    Attributes:
        candidate_requests: Expected in this time.
        error_ratio: Smallest ratio of the error shares, candidate to stable; None if not even failing all requests is
            caught by comparison (the immediate guard may still catch it).
        slow_ratio: The same of the shares of slow requests; None if not even a candidate that is always slow is.
    """

    seconds: float
    candidate_requests: float
    error_ratio: float | None
    slow_ratio: float | None


class Parity(Frozen):
    """What it takes to prove that a candidate which is as good as stable is not worse, in half of all cases.

    Attributes:
        requests: Of both arms.
    """

    requests: float
    seconds: float


class StepPower(Frozen):
    """One step below 100 %, where there is something to compare with.

    Attributes:
        outage_seconds: By then a candidate that fails every request is rolled back by the immediate guard (power 0.9).
        enough_seconds: By then the step has seen `minimum_requests` (power 0.9), without which it cannot pass.
        shortest: Within the minimum bake.
        longest: Within the maximum bake.
        kind_error_ratio: Smallest ratio that is caught within the maximum bake in a kind of requests that is rare (see
            `KIND_SHARE`); None if not even failing all of them is.
        errors: Parity of errors; None where the tolerated ratio is so near 1 that the test cannot prove it.
        slow: Parity of slow requests; None likewise.
        guards: It can pass, and catches a serious rise of errors before it does.
    """

    percent: float
    outage_seconds: float
    enough_seconds: float
    shortest: Caught
    longest: Caught
    kind_error_ratio: float | None
    errors: Parity | None
    slow: Parity | None
    guards: bool


class Proposal(Frozen):
    """Steps and bake times for the policy, at which every step catches a serious rise of errors."""

    steps_percent: tuple[float, ...]
    minimum_bake_seconds: float
    maximum_bake_seconds: float


class CanaryPower(Frozen):
    """A canary before it starts.

    Attributes:
        rate_per_second: Expected traffic: the workload's.
        error_share: Errors of stable that are assumed.
        slow_share: Slow requests of stable, as the policy defines them.
        block_seconds: The unit of evidence on latencies.
        wavering_ratio: Smallest ratio of the odds of a slow request that is told from chance where servers waver (see
            `WAVERING`), however many requests there are.
        proposal: None where the configured steps do, or nothing would.
        warnings: In plain words.
    """

    rate_per_second: float
    error_share: float
    slow_share: float
    block_seconds: float
    wavering_ratio: float
    steps: tuple[StepPower, ...]
    proposal: Proposal | None
    warnings: tuple[str, ...]


def duration(seconds: float) -> str:
    """Time for people: `90 s`, `15 min`, `5.1 h`, `3 days`."""
    for unit, length, most in (("s", 1.0, 120.0), ("min", 60.0, 7200.0), ("h", 3600.0, 172_800.0)):
        if seconds < most:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds / 86400.0:,.0f} days"
