"""Reads what Triton's perf_analyzer measured, for the comparison of load generators in `loadgen.py`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.loadtest.second_opinion import ToolRun

_NANOSECONDS = 1e-9


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
