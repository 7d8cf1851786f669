"""What other load generators export of a run, request by request, in columns like ours. Pure but for reading files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.base.errors import IntegrityError

AIPERF_SUMMARY = "profile_export_aiperf.json"
AIPERF_RECORDS = "profile_export.jsonl"
_NANOSECONDS = 1e-9
_MILLISECONDS = 1e-3

Values = NDArray[np.float64]


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


def _column(rows: Iterable[Mapping[str, Any]], metric: str) -> Values:
    """A metric of each request; NaN where it has none, like the time between tokens of a single one."""
    return np.array([float(row[metric]["value"]) if metric in row else np.nan for row in rows], dtype=np.float64)
