"""TensorRT's timing cache, kept from build to build: measured kernel times, valid on one GPU model and version.

cache = TimingCache.of(root, gpu="NVIDIA H200", tensorrt_llm="1.2.1", tensorrt="10.14.1.48")
command = [..., "--input_timing_cache", str(cache.path)] if cache.is_there else [...]
cache.keep(new)
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

_DAMAGED = re.compile(
    r"timing cache.*(not be used|invalid|corrupt|mismatch|fail|incompatible)|magic tag does not match|kMAGIC_TAG",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class TimingCache:
    """The timing cache of one GPU model and version; the file need not be there."""

    path: Path

    @staticmethod
    def of(root: Path, *, gpu: str, tensorrt_llm: str, tensorrt: str) -> TimingCache:
        """The cache in a directory that outlives the build."""
        name = f"{gpu}-tensorrt_llm-{tensorrt_llm}-tensorrt-{tensorrt}"
        return TimingCache(root / "timing" / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', name)}.cache")

    @property
    def is_there(self) -> bool:
        """Whether an earlier build left one."""
        return self.path.is_file() and self.path.stat().st_size > 0

    def keep(self, new: Path) -> None:
        """Put a finished build's cache in its place, whole or not at all; builds at the same time may do so too."""
        if not new.is_file() or not new.stat().st_size:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.path.parent, prefix=".new-") as scratch:
            shutil.copyfile(new, Path(scratch) / "cache").replace(self.path)

    def throw_away(self) -> None:
        """Remove it."""
        self.path.unlink(missing_ok=True)


def blames_timing_cache(line: str) -> bool:
    """Whether a line of the tool says that it cannot use the timing cache that it was given."""
    return _DAMAGED.search(line) is not None
