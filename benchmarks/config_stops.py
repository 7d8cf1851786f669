"""Stops of the release config from the DAG to a stage's process: the functions of ours that it goes through.

    python benchmarks/config_stops.py [--list]

Takes one stage (`download`) of the tests' small release the whole way, as Airflow would: the DAG is made, the task
submits the stage to the process runner, and the stage's command runs. A stop is a function of ours that is on the call
stack when one of these happens: a configuration file is read, the stage's operator is made, the stage's request is
made, its process is started, the stage itself runs. Exits with 1 when the goal is missed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

from goals import at_most

ROOT = Path(__file__).resolve().parents[1]
OURS = tuple(f"{ROOT / folder}/" for folder in ("llm_pipeline", "plugins", "dags"))
MOST_STOPS = 25
STAGE = "download"

sys.path[:0] = [str(ROOT / folder) for folder in (".", "plugins", "tests/airflow", "tests/doubles")]

from conftest import STAGES, Project, write_project  # noqa: E402 - chooses Airflow's home before Airflow is imported

MILESTONES = {
    "a configuration file is read": ("llm_pipeline/config/loading.py", "load_yaml"),
    "the operator is made": ("plugins/llm_pipeline_airflow/operators.py", "StageOperator.__init__"),
    "the request is made": (f"llm_pipeline/stages/{STAGE}.py", "request"),
    "the process is started": ("llm_pipeline/base/detached.py", "start"),
    "the stage runs": (str(STAGES.relative_to(ROOT)), "run"),
}


class Stops:
    """The stops so far, each a file and a function, in the order in which the config came to them first."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], None] = {}
        self.reads = 0

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Look at the calls of this thread meanwhile."""
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event != "call" or (place := _place(frame)) not in MILESTONES.values():
            return
        if place == MILESTONES["the operator is made"] and frame.f_locals.get("stage") != STAGE:
            return
        self.reads += place == MILESTONES["a configuration file is read"]
        above: FrameType | None = frame
        on_the_way = []
        while above is not None:
            if above.f_code.co_filename.startswith(OURS) and not above.f_code.co_name.startswith("<"):
                on_the_way.append(_place(above))
            above = above.f_back
        self.found |= dict.fromkeys(reversed(on_the_way))


def _place(frame: FrameType) -> tuple[str, str]:
    path = Path(frame.f_code.co_filename)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path), frame.f_code.co_qualname


def walk(project: Project) -> Stops:
    """Take the config of a small release from the DAG to a stage."""
    from in_process_runner import scripted_stages
    from llm_pipeline_airflow.discovery import release_dags

    from llm_pipeline.cli import main
    from llm_pipeline.release import execute

    setattr(execute, "load_stage", scripted_stages().load_stage)  # noqa: B010 - they are the real ones, and do no work
    stops = Stops()
    with stops.traced():
        dags = release_dags((project.config.parent,))
    (dag,) = dags.values()
    context = _context(dag.dag_id)
    dag.get_task("claim").poke(context)
    first = dag.get_task("resolve").request(context)
    release_id = execute.execute(first).release_id
    operator = dag.get_task(STAGE)
    operator.release_id = release_id
    with stops.traced():
        job = operator.submit_job(context)
    directory = Path(job["directory"])
    arguments = ["--request", str(directory / "request.json"), "--result", str(directory / "again.json")]
    operator.poll_until_complete(job, context)
    shutil.rmtree(project.root / "store" / "stages")  # or its result would be reused
    with stops.traced():
        code = main(["stage", "run", STAGE, *arguments])
    if code:
        sys.exit(f"the stage ended with {code}")
    return stops


def _context(dag_id: str) -> Any:
    """Of the only run that this Airflow has."""
    run = SimpleNamespace(
        dag_id=dag_id,
        run_id="manual-1",
        run_type="manual",
        run_after=datetime.now(UTC),
        conf={},
        data_interval_end=None,
    )
    ti = SimpleNamespace(get_dr_count=lambda *_names, **_how: 0, get_task_states=lambda **_which: {})
    params = {"revision": None, "replace": False}
    return {"dag_run": run, "run_id": run.run_id, "ti": ti, "params": params, "triggering_asset_events": {}}


def main() -> int:
    """Print the stops and the goal; 1 when it is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="name the stops")
    listed = parser.parse_args().list
    with tempfile.TemporaryDirectory() as directory:
        stops = walk(write_project(Path(directory)))
    for path, function in stops.found if listed else ():
        print(f"  {path}: {function}")
    print(f"configuration files read  {stops.reads}")
    return 0 if at_most("stops of the release config from DAG to process", len(stops.found), MOST_STOPS) else 1


if __name__ == "__main__":
    sys.exit(main())
