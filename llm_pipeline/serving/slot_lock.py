"""One starter or stopper of a server slot at a time, across the processes of a host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llm_pipeline.base.file_lock import flocked


@contextmanager
def exclusive(state: Path) -> Iterator[None]:
    """Hold a slot's lock; it is free again when the process ends, however it does.

    Raises:
        HolderStopped: Whoever starts or stops the slot's server is stopped itself.
    """
    state.mkdir(parents=True, exist_ok=True)
    with flocked(state / "lock"):
        yield
