"""The hook of the load test: the workload's rate measured by us and by another tool, and why the figures differ.

    require_tool(endpoint)                        # before any traffic
    opinion = second_opinion(policy, endpoint, source, workload, directory, tokenizer=checkpoint)

It is for information: what the other tool cannot do stops no release.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.base.errors import IntegrityError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.config.workload import Workload
from llm_pipeline.loadtest.measure import LoadClient, client_lag_seconds
from llm_pipeline.loadtest.outcome import SecondOpinion
from llm_pipeline.loadtest.records import Records
from llm_pipeline.loadtest.second_opinion.aiperf import REQUEST_TIMEOUT_SECONDS, ToolRun, require_tool, run_aiperf
from llm_pipeline.loadtest.traffic import LoadRequest, Traffic
from llm_pipeline.loadtest.workload import TrafficSource

_SEEDS_APART = 500  # between those of the load test's windows
_QUANTILES = (0.5, 0.99)
_PAIRED = "Both sent at the same times for the same lengths of answers, with prompts that no prefix cache knew yet."
_log = get_logger(__name__)

Values = NDArray[np.float64]


def second_opinion(
    policy: LoadTestPolicy,
    endpoint: Endpoint,
    source: TrafficSource,
    workload: Workload,
    directory: Path,
    *,
    tokenizer: Path | None = None,
) -> SecondOpinion | None:
    """Measure the workload's rate with our client, then with the other tool.

    Args:
        policy: Says whether, and which tool.
        endpoint: The server, warmed up.
        source: Draws the traffic.
        workload: The rate and the length of the window.
        directory: Keeps what the tool writes.
        tokenizer: Directory of the model's `tokenizer.json`; without it aiperf counts words for tokens.

    Returns:
        None when the policy wants none; no figures, and the reason, when the tool gave no results.

    Raises:
        ConfigError: The tool is not installed, or cannot be let to this endpoint.
        Transient: Nobody answers our client.
    """
    if policy.second_opinion is None:
        return None
    program = require_tool(endpoint)
    ours, theirs = paired_traffic(source, workload)
    with LoadClient(
        endpoint, processes=policy.client_processes, timeout_seconds=float(REQUEST_TIMEOUT_SECONDS)
    ) as client:
        records = client.send(ours).records
    try:
        run = run_aiperf(program, endpoint, theirs, directory, tokenizer=tokenizer)
    except (IntegrityError, Transient) as error:
        _log.warning("no second opinion", reason=str(error))
        return SecondOpinion(tool="aiperf", figures={}, differences=(f"It gave no result: {error.message}.",))
    counted_by = "tokenizing the text again" if tokenizer else "words, because it was given no tokenizer"
    opinion = compare_runs(run, records, counted_by=counted_by)
    return opinion.model_copy(update={"differences": (*opinion.differences, _PAIRED)})


def paired_traffic(source: TrafficSource, workload: Workload) -> tuple[Traffic, Traffic]:
    """Traffic for us and for the other tool: the same times and lengths of answers, but prompts of their own.

    With the same prompts a server's prefix cache would make the second one faster. All requests are plain streams: the
    other tool has no others, or none beside them.
    """
    seed, rate, seconds = workload.seed + _SEEDS_APART, workload.rate_per_second, workload.duration_seconds
    ours, others = source.open_loop(rate, seconds, seed), source.open_loop(rate, seconds, seed + 1)
    count = min(len(ours.requests), len(others.requests))
    arrivals = np.empty(0) if ours.arrivals is None else ours.arrivals[:count]
    plain = [LoadRequest(request.prompt, request.maximum_tokens) for request in ours.requests[:count]]
    pairs = zip(plain, others.requests, strict=False)
    theirs = [replace(request, prompt=other.prompt) for request, other in pairs]
    return Traffic.open_loop(plain, arrivals, seconds), Traffic.open_loop(theirs, arrivals, seconds)


def compare_runs(run: ToolRun, records: Records, *, counted_by: str) -> SecondOpinion:
    """Another tool's figures beside ours, timed alike as far as that goes.

    Args:
        run: What the other tool measured.
        records: What we measured.
        counted_by: How the other tool counts tokens, to stand after "by".
    """
    answered = records.where(records.answered)
    lag, tokens = answered["lag_seconds"], answered["output_tokens"].astype(np.float64)
    latencies = {
        "first token from the send": (run.first_token_seconds, answered["first_token_seconds"] - lag),
        "time per output token": (run.time_per_output_token_seconds, answered.time_per_output_token_seconds),
        "last token from the send": (run.total_seconds, answered["last_token_seconds"] - lag),
    }
    figures: dict[str, tuple[float | None, float | None]] = {
        f"{name} p{100 * quantile:g}, ms": (_milliseconds(theirs, quantile), _milliseconds(own, quantile))
        for name, (theirs, own) in latencies.items()
        for quantile in _QUANTILES
    }
    figures["output tokens per request"] = _mean(run.output_tokens), _mean(tokens)
    figures["failed requests"] = float(run.failed), float(len(records) - len(answered))
    return SecondOpinion(tool=run.tool, figures=figures, differences=_differences(run, records, counted_by))


def _differences(run: ToolRun, records: Records, counted_by: str) -> tuple[str, ...]:
    name = run.tool.split(maxsplit=1)[0]
    late = "which may be late" if run.lag_p99_seconds is None else _late(run.lag_p99_seconds)
    clock = (
        f"{name}'s clock starts at its own sends, {late}; ours starts at the scheduled time. Our own lateness "
        f"(p99 {1e3 * client_lag_seconds(records):.2g} ms) is taken off here, so that both count from the send."
    )
    tokens = f"{name} counts output tokens by {counted_by}, we take the server's count: times per output token differ."
    checks = f"{name} counts every answer without an error as good; we require a finish_reason and all its tokens."
    return clock, tokens, checks


def _late(seconds: float) -> str:
    return f"of which 99 % were at most {1e3 * seconds:.2g} ms late"


def _milliseconds(seconds: Values, quantile: float) -> float | None:
    known = seconds[~np.isnan(seconds)]
    return 1e3 * float(np.quantile(known, quantile)) if known.size else None


def _mean(values: Values) -> float | None:
    return float(np.mean(values)) if values.size else None
