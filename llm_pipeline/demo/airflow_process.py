"""Airflow's command line, for its processes that fork: `python -m llm_pipeline.demo.airflow_process scheduler`.

Each task and each parse of a DAG file is a fork. What is imported before the fork, no fork imports again: that saves
about a second of CPU time for each task, more than half of what Airflow needs for it.
"""

from __future__ import annotations

from airflow.__main__ import main
from llm_pipeline_airflow import discovery

from llm_pipeline.stages.registry import STAGE_NAMES, load_stage

IMPORTED_BEFORE = (discovery, *map(load_stage, STAGE_NAMES))

if __name__ == "__main__":
    main()  # type: ignore[no-untyped-call]
