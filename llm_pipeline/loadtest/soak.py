"""What grows while a server is used for long."""

from __future__ import annotations

from llm_pipeline.config.policy import Soak
from llm_pipeline.loadtest.outcome import WindowSummary
from llm_pipeline.verdict import Evidence, Verdict

_NAME = "memory growth in the soak"
_FEWEST_SAMPLES = 20


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
