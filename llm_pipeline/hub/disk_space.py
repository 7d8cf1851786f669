"""Whether a model fits on the disks that it will be on, before a byte of it comes."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from llm_pipeline.hub.partial_file import DiskTooSmall

SPARE_BYTES = 64_000_000
_MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Place:
    """A directory that bytes will go to; it need not exist yet.

    Attributes:
        name: What it is in the deployment, e.g. `work_root`.
        directory: Where it is.
        needed: Bytes that will go there.
    """

    name: str
    directory: Path
    needed: int


def require_space(*places: Place) -> None:
    """Refuse what does not fit; directories on one file system share its space.

    Raises:
        DiskTooSmall: With what is needed and what is free.
    """
    by_disk: dict[int, list[Place]] = {}
    for place in places:
        by_disk.setdefault(_existing(place.directory).stat().st_dev, []).append(place)
    for sharing in by_disk.values():
        _require_on_one_disk(sharing)


def _require_on_one_disk(places: list[Place]) -> None:
    needed = sum(place.needed for place in places)
    free = shutil.disk_usage(_existing(places[0].directory)).free
    if not needed or needed + SPARE_BYTES <= free:
        return
    names = " and ".join(place.name for place in places)
    raise DiskTooSmall(
        f"{needed / _MEGABYTE:,.0f} MB are still to be fetched and only {free / _MEGABYTE:,.0f} MB are free",
        where=f"{names} ({places[0].directory})",
        hint=f"free some space, or move {names} of the deployment to a larger disk",
    )


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)
