"""One starter or stopper of a server slot at a time, across the processes of a host."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(state: Path) -> Iterator[None]:
    """Hold a slot's lock; it is free again when the process ends, however it does."""
    state.mkdir(parents=True, exist_ok=True)
    with (state / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
