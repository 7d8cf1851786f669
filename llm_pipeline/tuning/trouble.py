"""What went wrong in a trial: the text of an error, or what the server's metrics said."""

from __future__ import annotations

import re

from llm_pipeline.loadtest.outcome import WindowSummary
from llm_pipeline.tuning.knobs import Trouble

_OUT_OF_MEMORY = re.compile(
    r"out of (GPU |host )?memory|OutOfMemory|bad_alloc|cannot allocate memory|CUDA_ERROR_OUT_OF_MEMORY|exit code -9"
    r"|SIGKILL|for host memory",
    re.IGNORECASE,
)
_PREEMPTED = re.compile(r"preempt|evict|paused request|no free (kv )?blocks|kv cache is full", re.IGNORECASE)
_FULL = 0.98


def trouble_in_text(text: str) -> Trouble:
    """The trouble that a failure's text tells of."""
    if _OUT_OF_MEMORY.search(text):
        return "out of memory"
    return "preemption" if _PREEMPTED.search(text) else "failed"


def trouble_in_window(window: WindowSummary) -> tuple[Trouble, str] | None:
    """The trouble of a window that failed requests, with what tells it; None when none did."""
    if not window.failed:
        return None
    use = window.server.kv_cache_fraction
    if use is not None and use >= _FULL:
        return "preemption", f"the KV cache was full, and {window.failed} of {window.requests} requests failed"
    return trouble_in_text(window.fault_detail), window.fault_detail
