"""Releases and watches as the store knows them, summed up for a list."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.loading import load_release
from llm_pipeline.inspection.listing import ReleaseRow, release_rows
from llm_pipeline.inspection.release_artifacts import DamagedRow
from llm_pipeline.release.watch_record import read_status
from llm_pipeline.store import ArtifactStore, open_store

log = get_logger(__name__)

_NOT_LOOKED = "the watch has not looked yet: it starts once the DAG is unpaused and a triggerer runs"


@dataclass(frozen=True)
class WatchSummary:
    """One release config with a watch.

    Attributes:
        commit: What the revision named last; empty before the first look.
        words: The last decision.
        since: When it was decided.
        checked_at: A time at which it still held; the triggerer writes it every quarter of an hour.
    """

    config: str
    model: str
    revision: str
    commit: str
    words: str
    since: datetime | None
    checked_at: datetime | None


def watch_of(config_path: Path) -> WatchSummary | None:
    """What the watch of a release config decided last; None for a config without one.

    Raises:
        ConfigError: The release config is wrong.
        IntegrityError: What the watch wrote cannot be understood.
    """
    loaded = load_release(config_path)
    if loaded.config.watch is None:
        return None
    status = read_status(open_store(loaded.deployment.store), loaded.config.name)
    return WatchSummary(
        config=loaded.config.name,
        model=loaded.config.model.id,
        revision=loaded.config.model.revision,
        commit=status.commit if status else "",
        words=status.words if status else _NOT_LOOKED,
        since=status.since if status else None,
        checked_at=status.checked_at if status else None,
    )


def releases_of(store: ArtifactStore, config_name: str) -> list[ReleaseRow]:
    """The releases made from one release config, newest first; the log names what cannot be read."""
    rows = release_rows(store)
    for row in rows:
        if isinstance(row, DamagedRow):
            log.warning(str(row))
    return [row for row in rows if isinstance(row, ReleaseRow) and row.config == config_name]
