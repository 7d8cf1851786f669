"""The hook of the load test: the workload's rate measured by us and by another tool, and why the figures differ.

    require_tool(endpoint)                        # before any traffic
    opinion = second_opinion(policy, endpoint, source, workload, directory, tokenizer=checkpoint)

It is for information: what the other tool cannot do stops no release.

aiperf (github.com/ai-dynamo/aiperf) runs as a program of its own, for its dependencies are pinned against ours. It has
no endpoint of Triton's: its template endpoint reads the answers of `generate_stream`, and a trace of format
`mooncake_trace` may hold whole request bodies, so that it sends ours as they are, at the same times.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.artifacts.repository_layout import MODEL_NAME
from llm_pipeline.base import detached
from llm_pipeline.base.errors import ConfigError, IntegrityError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.config.workload import Workload
from llm_pipeline.loadtest.client.messages import request_body
from llm_pipeline.loadtest.measure import LoadClient, client_lag_seconds
from llm_pipeline.loadtest.outcome import SecondOpinion
from llm_pipeline.loadtest.records import Records
from llm_pipeline.loadtest.traffic import LoadRequest, Traffic
from llm_pipeline.loadtest.workload import TrafficSource
from llm_pipeline.serving.protocols import TritonProtocol

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


PROGRAM_VARIABLE = "LLM_PIPELINE_AIPERF"
REQUEST_TIMEOUT_SECONDS = 60
_START_SECONDS = 120.0  # it starts a dozen processes and loads a tokenizer
_POLL_SECONDS = 0.1
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR")
_WORDS_TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"},
}


def require_tool(endpoint: Endpoint) -> Path:
    """The aiperf program, named by the environment variable `LLM_PIPELINE_AIPERF` or found on the PATH.

    Raises:
        ConfigError: It is not installed, or cannot be let to this endpoint.
    """
    named = os.environ.get(PROGRAM_VARIABLE, "")
    found = shutil.which(named or "aiperf")
    if found is None:
        raise ConfigError(
            "the policy wants a second opinion from aiperf, which is not installed",
            where=named or "PATH",
            hint=f"pip install aiperf==0.13.0 in an environment of its own and name its program in {PROGRAM_VARIABLE}",
        )
    if endpoint.openai_model is not None:
        raise ConfigError(
            "a second opinion needs a Triton endpoint, and this one has OpenAI's API",
            where=endpoint.url,
            hint="leave second_opinion out of the policy",
        )
    if endpoint.variables:
        raise ConfigError(
            "aiperf cannot be used on this endpoint: it would show the values of the headers on its command line",
            where=endpoint.url,
            hint="leave second_opinion out of the policy, or stage where no headers are needed",
        )
    return Path(found)


def run_aiperf(
    program: Path, endpoint: Endpoint, traffic: Traffic, directory: Path, *, tokenizer: Path | None = None
) -> ToolRun:
    """Have aiperf send the traffic of an open loop, and read what it measured.

    Args:
        program: What `require_tool` found.
        endpoint: The server.
        traffic: Streamed requests with their times.
        directory: Keeps what aiperf reads, writes and says.
        tokenizer: Directory of the model's tokenizer; without it aiperf counts words.

    Raises:
        ConfigError: The program cannot be started.
        Transient: It did not end in time.
        IntegrityError: It ended without results.
    """
    if traffic.arrivals is None:
        raise ValueError("aiperf replays the times of an open loop; a closed loop has none")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / AIPERF_SUMMARY).unlink(missing_ok=True)
    _write_trace(directory / "trace.jsonl", traffic)
    tokenizer = (tokenizer or _write_words_tokenizer(directory / "tokenizer")).resolve()
    command = [str(program), *_arguments(endpoint, directory.resolve(), tokenizer)]
    limit = traffic.duration_seconds + REQUEST_TIMEOUT_SECONDS + _START_SECONDS
    _run(command, directory, endpoint, limit)
    return read_aiperf(directory)


def _arguments(endpoint: Endpoint, directory: Path, tokenizer: Path) -> list[str]:
    url = urlsplit(endpoint.url)
    template = directory / "template.json"
    template.write_text('{"text_input": {{ text|tojson }}}', encoding="utf-8")  # wanted, though each body is given
    options = {
        "--model": MODEL_NAME,
        "--endpoint-type": "template",
        "--url": f"{url.scheme}://{url.netloc}",
        "--custom-endpoint": f"{url.path.rstrip('/')}/v2/models/{MODEL_NAME}/generate_stream",
        "--tokenizer": str(tokenizer),
        "--input-file": str(directory / "trace.jsonl"),
        "--custom-dataset-type": "mooncake_trace",
        "--request-timeout-seconds": str(REQUEST_TIMEOUT_SECONDS),
        "--workers-max": str(max(1, len(os.sched_getaffinity(0)) // 2)),
        "--record-processor-service-count": "1",
        "--ui-type": "none",
        "--output-artifact-dir": str(directory),
    }
    extra = [f"payload_template:{template}", "response_field:text_output"]
    return [
        "profile",
        *(word for option in options.items() for word in option),
        *(word for value in extra for word in ("--extra-inputs", value)),
        "--streaming",
        "--fixed-schedule",
        "--no-gpu-telemetry",
        "--no-server-metrics",
    ]


def _write_trace(path: Path, traffic: Traffic) -> None:
    arrivals = [] if traffic.arrivals is None else traffic.arrivals.tolist()
    with path.open("w", encoding="utf-8") as stream:
        for arrival, request in zip(arrivals, traffic.requests, strict=True):
            row = {"timestamp": round(1e3 * arrival, 3), "payload": json.loads(request_body(request, TritonProtocol()))}
            stream.write(json.dumps(row) + "\n")


def _write_words_tokenizer(directory: Path) -> Path:
    """A tokenizer that needs no network, unlike the one that aiperf has built in."""
    directory.mkdir(exist_ok=True)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    (directory / "tokenizer.json").write_text(json.dumps(_WORDS_TOKENIZER), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return directory


def _run(command: list[str], directory: Path, endpoint: Endpoint, limit_seconds: float) -> None:
    """Run a program to its end; whatever it started in its process group ends with it.

    Its environment holds none of our credentials, and no `HF_HUB_OFFLINE`, with which it refuses a local tokenizer.
    """
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    if endpoint.ca_file:
        environment["SSL_CERT_FILE"] = endpoint.ca_file
    deadline = time.monotonic() + limit_seconds
    process = detached.start(
        "aiperf",
        command,
        directory / "process.json",
        log=directory / "console.log",
        environment=environment,
        directory=directory,
    )
    try:
        while process.alive:
            if time.monotonic() > deadline:
                raise Transient(f"aiperf did not end within {limit_seconds:.0f} s", where=str(directory))
            time.sleep(_POLL_SECONDS)
    finally:
        detached.stop(process)


AIPERF_SUMMARY = "profile_export_aiperf.json"
AIPERF_RECORDS = "profile_export.jsonl"
_MILLISECONDS = 1e-3


@dataclass(frozen=True)
class ToolRun:
    """The answered requests of another tool's run; all times count from its own send.

    Attributes:
        tool: Its name and version.
        failed: Requests that it counts as failed, which the columns leave out.
        first_token_seconds: From the send to the first text.
        total_seconds: From the send to the last text.
        time_per_output_token_seconds: By its own count of tokens; NaN for fewer than two.
        output_tokens: By its own count.
        lag_p99_seconds: How late it sent; None when it does not tell.
    """

    tool: str
    failed: int
    first_token_seconds: Values
    total_seconds: Values
    time_per_output_token_seconds: Values
    output_tokens: Values
    lag_p99_seconds: float | None = None


def read_aiperf(directory: Path) -> ToolRun:
    """Read the exports of an `aiperf profile` run.

    Raises:
        IntegrityError: They are missing, not aiperf's, or of a run that did not come to its end.
    """
    path = directory / AIPERF_SUMMARY
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        lines = (directory / AIPERF_RECORDS).read_text(encoding="utf-8").splitlines()
        if not summary["is_complete"] or summary["was_cancelled"]:
            raise IntegrityError("the run did not finish", where=str(path))
        records = [json.loads(line) for line in lines]
        measured = [record["metrics"] for record in records if not record.get("error")]
        lag = summary.get("replay_sched_lag_p99")
        return ToolRun(
            tool=f"aiperf {summary['aiperf_version']}",
            failed=len(records) - len(measured),
            first_token_seconds=_MILLISECONDS * _column(measured, "time_to_first_token"),
            total_seconds=_MILLISECONDS * _column(measured, "request_latency"),
            time_per_output_token_seconds=_MILLISECONDS * _column(measured, "inter_token_latency"),
            output_tokens=_column(measured, "output_sequence_length"),
            lag_p99_seconds=None if lag is None else _MILLISECONDS * float(lag["avg"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(f"no readable export of aiperf: {error!r}", where=str(path)) from error


def _column(rows: Iterable[Mapping[str, Any]], metric: str) -> Values:
    """A metric of each request; NaN where it has none, like the time between tokens of a single one."""
    return np.array([float(row[metric]["value"]) if metric in row else np.nan for row in rows], dtype=np.float64)
