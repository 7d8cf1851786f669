"""What the lines of `trtllm-build` say about how far it is."""

from __future__ import annotations

import re

from llm_pipeline.base.logging import get_logger
from llm_pipeline.engines.trtllm_build.timing_cache import blames_timing_cache

log = get_logger(__name__)

_RANK_DONE = re.compile(r"Serializing engine to .*rank(\d+)\.engine")
_ALL_DONE = re.compile(r"Total time of building all engines: (\d+):(\d\d):(\d\d)")
_PEAK_MEMORY = re.compile(r"Build phase peak memory: ([\d.]+) MB, children: ([\d.]+) MB")


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
        """Take one line."""
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
