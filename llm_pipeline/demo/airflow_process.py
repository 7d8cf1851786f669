"""Airflow's command line, for its processes that fork: `python -m llm_pipeline.demo.airflow_process scheduler`.

Each task and each parse of a DAG file is a fork. Forks need not import what was imported before them: that saves
about a second of CPU time for each task, more than half of what Airflow needs for it.
"""

from __future__ import annotations

from airflow.__main__ import main as airflow
from llm_pipeline_airflow import discovery

from llm_pipeline.base.adapters import Group, adapter, our_kinds
from llm_pipeline.base.entry import entry_point
from llm_pipeline.release.execute import load_stage
from llm_pipeline.release.flow import stage_names

_READ_WITH_A_DEPLOYMENT: tuple[Group, ...] = ("metric_sources", "routers", "runners", "server_controls")
"""Groups of adapters whose settings every parse of a DAG file reads."""

IMPORTED_BEFORE = (
    discovery,
    *map(load_stage, stage_names()),
    *(adapter(group, kind) for group in _READ_WITH_A_DEPLOYMENT for kind in our_kinds(group)),
)


@entry_point
def main() -> int:
    """Airflow's own, with its arguments; returns its exit code."""
    try:
        airflow()  # type: ignore[no-untyped-call]
    except SystemExit as ended:  # as it ends well, too
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
