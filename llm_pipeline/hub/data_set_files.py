"""Files of a pinned data set: fetched one after the other, every byte verified, and kept, so that each comes once."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_pipeline.artifacts.pinned import HubFile, PinnedDataSet
from llm_pipeline.base.logging import get_logger
from llm_pipeline.hub.disk_space import Place, require_space
from llm_pipeline.hub.kept_data_sets import using
from llm_pipeline.hub.rate_limit import RateLimit
from llm_pipeline.hub.source import FileBytes
from llm_pipeline.hub.transfer import Transfer

log = get_logger(__name__)


@dataclass(frozen=True)
class DataSetFiles:
    """Fetches files of data sets.

    Attributes:
        source: Where they come from.
        kept: Directory for the files of all data sets; what is there, and right, is not fetched again.
        limit: The rate of it all.
    """

    source: FileBytes
    kept: Path
    limit: RateLimit

    def fetch(self, pinned: PinnedDataSet, files: Sequence[HubFile], destination: Path) -> None:
        """Fetch files into a directory, under their paths.

        Raises:
            SourceRefused: The source does not give a file.
            SourceUnavailable: The source cannot be reached, after several attempts.
            IntegrityError: A file's bytes are wrong twice.
            DiskTooSmall: The files do not fit.
        """
        directory = self.kept / pinned.id / pinned.commit
        transfer = Transfer(self.source, pinned, directory, self.limit)
        with using(directory):
            missing = sum(file.size - _size(transfer.partial_file(file)) for file in files)
            require_space(Place("work_root", directory, max(0, missing)))
            for file in files:
                target = destination / file.path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(transfer.fetch(file), target)
                log.info("verified", data_set=pinned.id, file=file.path, bytes=file.size)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
