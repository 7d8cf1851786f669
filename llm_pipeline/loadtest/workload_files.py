"""The data files of a workload: in `configs/`, and in the data set that resolving a release publishes."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.workload import Workload


def workload_files(workload: Workload) -> tuple[str, ...]:
    """The file of prompts, and the trace if there is one, relative to `configs/`."""
    return (workload.prompts,) if workload.trace is None else (workload.prompts, workload.trace.file)


def locate_files(workload: Workload, directory: Path) -> tuple[Path, ...]:
    """Where the files are: below `configs/`, or in the published data set, which numbers them when they are several.

    Raises:
        ConfigError: One of them is missing.
    """
    names = workload_files(workload)
    return tuple(_locate(directory, name, number, len(names)) for number, name in enumerate(names))


def _locate(directory: Path, name: str, number: int, of: int) -> Path:
    own = PurePosixPath(name).name
    published = directory / (own if of == 1 else f"{number}-{own}")
    found = next((path for path in (directory / name, published) if path.is_file()), None)
    if found is None:
        raise ConfigError(f"there is no {name} and no {published.name}", where=str(directory))
    return found
