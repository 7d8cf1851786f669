"""What `trtllm-build` says in its log, and TensorRT's timing cache, which is kept from build to build.

    cache = TimingCache.of(root, gpu="NVIDIA H200", tensorrt_llm="1.2.1", tensorrt="10.14.1.48")
    command = [..., "--input_timing_cache", str(cache.path)] if cache.is_there else [...]
    cache.keep(new)

The cache holds measured kernel times, valid on one GPU model and version.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from llm_pipeline.base.logging import get_logger

_DAMAGED = re.compile(
    r"timing cache.*(not be used|invalid|corrupt|mismatch|fail|incompatible)|magic tag does not match|kMAGIC_TAG",
    re.IGNORECASE,
)
log = get_logger(__name__)
_RANK_DONE = re.compile(r"Serializing engine to .*rank(\d+)\.engine")
_ALL_DONE = re.compile(r"Total time of building all engines: (\d+):(\d\d):(\d\d)")
_PEAK_MEMORY = re.compile(r"Build phase peak memory: ([\d.]+) MB, children: ([\d.]+) MB")


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
        """Store a finished build's cache by one rename, so that builds at the same time may do so, too."""
        if not new.is_file() or not new.stat().st_size:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.path.parent, prefix=".new-") as scratch:
            shutil.copyfile(new, Path(scratch) / "cache").replace(self.path)

    def throw_away(self) -> None:
        """Remove a cache that the tool could not use."""
        self.path.unlink(missing_ok=True)


def blames_timing_cache(line: str) -> bool:
    """Whether a line of the tool says that it cannot use the timing cache that it was given."""
    return _DAMAGED.search(line) is not None


class BuildProgress:
    """Follows the tool's lines; made for `run_tool`'s `on_line`.

    Attributes:
        ranks_done: Ranks whose engine was compiled, in the order in which that happened.
        build_seconds: What the tool says the build took; None until it says so.
        peak_host_megabytes: Most host memory of one rank's build; None if the tool does not say.
        cache_is_damaged: The tool could not use the timing cache that it was given.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self.ranks_done: list[int] = []
        self.build_seconds: float | None = None
        self.peak_host_megabytes: float | None = None
        self.cache_is_damaged = False

    def __call__(self, line: str) -> None:
        """Read one line of the tool's log."""
        if found := _RANK_DONE.search(line):
            self.ranks_done.append(int(found[1]))
            log.info(f"compiled rank {len(self.ranks_done)} of {self._ranks}", rank=int(found[1]))
        elif found := _ALL_DONE.search(line):
            hours, minutes, seconds = map(int, found.groups())
            self.build_seconds = hours * 3600.0 + minutes * 60.0 + seconds
        elif found := _PEAK_MEMORY.search(line):
            own_and_children = float(found[1]) + float(found[2])
            self.peak_host_megabytes = max(self.peak_host_megabytes or 0.0, own_and_children)
        if blames_timing_cache(line):
            self.cache_is_damaged = True
