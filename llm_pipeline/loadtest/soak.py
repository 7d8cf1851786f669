"""What comes of a server that is used for long: what grows, and trouble that is too rare for shorter windows."""

from __future__ import annotations

from llm_pipeline.base.verdict import Evidence, Verdict
from llm_pipeline.config.policy import LoadTestPolicy, Soak
from llm_pipeline.loadtest.gate import judge_windows
from llm_pipeline.loadtest.outcome import WindowSummary
from llm_pipeline.loadtest.records import Records

_NAME = "memory growth in the soak"
_FEWEST_SAMPLES = 20


def judge_soak(records: Records, window: WindowSummary, soak: Soak, policy: LoadTestPolicy) -> tuple[Evidence, ...]:
    """What a soak says, by itself: the service level as anywhere else, and the memory.

    Args:
        records: Of its window.
        window: The same in figures.
        soak: What the policy asks of it.
        policy: When the server is fast enough.
    """
    alone = policy.model_copy(update={"stall_period_seconds": None})  # the time of all windows counts for that
    judgement = judge_windows([records], alone, servers=[window.server])
    held = (fact.model_copy(update={"name": f"in the soak: {fact.name}"}) for fact in judgement.evidence)
    return (*held, memory_growth(window, soak))


def memory_growth(window: WindowSummary, soak: Soak) -> Evidence:
    """Growth of the server's memory over a soak, as a share of its size; without readings INCONCLUSIVE."""
    use, limit = window.server, soak.maximum_growth_fraction
    slope, size = use.resident_bytes_per_second, use.resident_bytes
    if slope is None or not size or use.samples < _FEWEST_SAMPLES:
        detail = f"The server's memory was read {use.samples} times, {_FEWEST_SAMPLES} are needed."
        return Evidence(name=_NAME, verdict=Verdict.INCONCLUSIVE, limit=limit, unit="fraction", detail=detail)
    growth = slope * window.window_seconds / size
    return Evidence(
        name=_NAME,
        verdict=Verdict.GO if growth <= limit else Verdict.NO_GO,
        measured=growth,
        limit=limit,
        unit="fraction",
        samples=use.samples,
        detail=f"{slope * 3600 / 1e6:+.1f} MB an hour, of {size / 1e6:.0f} MB.",
    )
