"""Time that passes on a host, whatever is done to its clock."""

from __future__ import annotations

import time
from dataclasses import dataclass

from llm_pipeline.base.detached import boot_id


@dataclass(frozen=True)
class HostTime:
    """A moment on a host.

    Attributes:
        boot: Tells one boot of one host from another.
        up_seconds: Seconds since that boot, also while the host slept; nobody can set them.
        wall: Seconds since 1970.
    """

    boot: str
    up_seconds: float
    wall: float

    @classmethod
    def now(cls) -> HostTime:
        """This moment on this host."""
        return cls(boot=boot_id(), up_seconds=time.clock_gettime(time.CLOCK_BOOTTIME), wall=time.time())

    def seconds_since(self, earlier: HostTime) -> float:
        """Seconds between two moments, never negative; only across a boot, or on another host, by the wall clocks."""
        if self.boot == earlier.boot:
            return max(0.0, self.up_seconds - earlier.up_seconds)
        return max(0.0, self.wall - earlier.wall)
