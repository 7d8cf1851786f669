"""The house in figures: circles of modules, and stops of the release config; `make lint` holds the layers.

    python benchmarks/house.py

Stops: one stage (`download`) of the tests' small release goes the whole way, as Airflow would take it: the DAG is made,
the task submits the stage to the process runner, and the stage's command runs. A stop is a function of ours that is on
the call stack when a configuration file is read, the stage's operator or its request is made, its process is started,
or the stage itself runs. One line a goal; exit code 1 when one is missed.
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

import grimp
from goals import at_most

ROOT = Path(__file__).parents[1]
OURS = tuple(f"{ROOT / folder}/" for folder in ("llm_pipeline", "plugins", "dags"))
MOST_STOPS, STAGE = 25, "download"


def circles() -> list[tuple[str, ...]]:
    """Modules that import one another, as the shortest way round from each; imports inside functions count."""
    graph = grimp.build_graph("llm_pipeline", "llm_pipeline_airflow")
    found: dict[frozenset[str], tuple[str, ...]] = {}
    for module in sorted(graph.modules):
        for imported in graph.find_modules_directly_imported_by(module):
            if chain := graph.find_shortest_chain(importer=imported, imported=module):
                found.setdefault(frozenset(chain), chain)
    return list(found.values())


def config_stops() -> list[tuple[str, str]]:
    """Files and functions, in the order in which the config of a small release comes to them from DAG to stage."""
    sys.path[:0] = [str(ROOT / folder) for folder in (".", "plugins", "tests/airflow", "tests/doubles", "tests")]
    from conftest import STAGES, write_project  # chooses Airflow's home before Airflow is imported
    from in_process_runner import scripted_stages
    from llm_pipeline_airflow.discovery import dags_of

    from llm_pipeline.release import execute
    from llm_pipeline.release.execute import main as stage_process

    operator_made = ("plugins/llm_pipeline_airflow/operators.py", "StageOperator.__init__")
    milestones = {
        ("llm_pipeline/config/loading.py", "load_yaml"),
        operator_made,
        (f"llm_pipeline/stages/{STAGE}.py", "request"),
        ("llm_pipeline/base/detached.py", "start"),
        (str(STAGES.relative_to(ROOT)), "run"),
    }
    found: dict[tuple[str, str], None] = {}

    def place(frame: FrameType) -> tuple[str, str]:
        path = Path(frame.f_code.co_filename)
        return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path), frame.f_code.co_qualname

    def called(frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or place(frame) not in milestones:
            return
        if place(frame) == operator_made and frame.f_locals.get("stage") != STAGE:
            return
        above: FrameType | None = frame
        on_the_way = []
        while above is not None:
            if above.f_code.co_filename.startswith(OURS) and not above.f_code.co_name.startswith("<"):
                on_the_way.append(place(above))
            above = above.f_back
        found.update(dict.fromkeys(reversed(on_the_way)))

    @contextmanager
    def traced() -> Iterator[None]:
        sys.setprofile(called)
        try:
            yield
        finally:
            sys.setprofile(None)

    setattr(execute, "load_stage", scripted_stages().load_stage)  # noqa: B010 - they are the real ones, and do no work
    with tempfile.TemporaryDirectory() as directory:
        project = write_project(Path(directory))
        with traced():
            (dag,) = (dag for dag in dags_of((project.config.parent,)).values() if dag.has_task(STAGE))
        context = _context(dag.dag_id)
        dag.get_task("claim").poke(context)
        operator = dag.get_task(STAGE)
        operator.release_id = execute.execute(dag.get_task("resolve").request(context)).release_id
        with traced():
            job = operator.submit_job(context)
        place_of_job = Path(job["directory"])
        arguments = ["--request", str(place_of_job / "request.json"), "--result", str(place_of_job / "again.json")]
        operator.poll_until_complete(job, context)
        shutil.rmtree(project.root / "store" / "stages")  # or its result would be reused
        with traced():
            code = stage_process([STAGE, *arguments])
    if code:
        sys.exit(f"the stage ended with {code}")
    return list(found)


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
    """Print the figures and the goals; 1 when one is missed."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    groups, stops = circles(), config_stops()
    for group in groups:
        print(f"  circle: {' '.join(group)}")
    for path, function in stops:
        print(f"  stop: {path}: {function}")
    met = [
        at_most("circles of modules", len(groups), 0),
        at_most("stops of the release config from DAG to process", len(stops), MOST_STOPS),
    ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    raise SystemExit(main())
