"""The other load generators of `loadgen.py`: runs aiperf with traffic of ours, and reads what both of them measured.

aiperf (github.com/ai-dynamo/aiperf) is a program of its own, for its dependencies are pinned against ours. It has
no endpoint of Triton's: its template endpoint reads the answers of `generate_stream`, and a trace of format
`mooncake_trace` may hold whole request bodies, so that it sends ours as they are, at the same times.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.artifacts.repository_layout import MODEL_NAME
from llm_pipeline.base import detached
from llm_pipeline.base.errors import IntegrityError, Transient
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.loadtest.client.messages import request_body
from llm_pipeline.loadtest.traffic import Traffic
from llm_pipeline.serving.protocols import TritonProtocol

Values = NDArray[np.float64]

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


def run_aiperf(program: Path, endpoint: Endpoint, traffic: Traffic, directory: Path) -> ToolRun:
    """Have aiperf send the traffic of an open loop, and read what it measured.

    Args:
        program: aiperf's.
        endpoint: The server.
        traffic: Streamed requests with their times.
        directory: Keeps what aiperf reads, writes and says.

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
    tokenizer = _write_words_tokenizer(directory / "tokenizer").resolve()
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
    """A tokenizer that counts words and needs no network, unlike the one that aiperf has built in."""
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
_NANOSECONDS = 1e-9


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


def read_perf_analyzer(path: Path) -> ToolRun:
    """Read what `perf_analyzer --profile-export-file` wrote: the last experiment, timed from its raw time stamps.

    Every response counts as one token, and one without responses as failed; a token that came with another is not told.

    Raises:
        IntegrityError: It is missing, not perf_analyzer's, or holds no experiment.
    """
    try:
        export = json.loads(path.read_text(encoding="utf-8"))
        requests = export["experiments"][-1]["requests"]
        answered = [request for request in requests if request["response_timestamps"]]
        stamps = [
            _NANOSECONDS * (np.array(request["response_timestamps"], dtype=np.int64) - int(request["timestamp"]))
            for request in answered
        ]
        tokens = np.array([len(times) for times in stamps], dtype=np.float64)
        first = np.array([times[0] for times in stamps], dtype=np.float64)
        last = np.array([times[-1] for times in stamps], dtype=np.float64)
        return ToolRun(
            tool=f"perf_analyzer {export['version']}",
            failed=len(requests) - len(answered),
            first_token_seconds=first,
            total_seconds=last,
            time_per_output_token_seconds=np.where(tokens > 1, (last - first) / np.maximum(1, tokens - 1), np.nan),
            output_tokens=tokens,
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise IntegrityError(f"no readable export of perf_analyzer: {error!r}", where=str(path)) from error
