"""The demo's release by Airflow's Celery executor: PostgreSQL, Redis and three workers, all real, on loopback.

    PYTHONPATH=CLUSTER_SITE python benchmarks/celery_executor.py

What leaves one machine leaves it this way: the same DAG, on Airflow's own executor. One worker is killed in the
middle of a stage; its next try must find that stage, or what it made, and start no other. The target has a worker of
its own, as one on another host would be: all of its tasks must run there, and no others. Needs the packages of
docker/constraints/cluster-py311.txt beside the control environment, and the programs of PostgreSQL and Redis
(`apt-get install postgresql redis-server`). One line a goal; exit code 1 when one is missed.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.cluster_services import (
    ancestors,
    celery_settings,
    celery_workers,
    kill_worker,
    postgres,
    redis,
    require_programs,
)
from benchmarks.goals import at_most, goal
from llm_pipeline.base import detached
from llm_pipeline.demo.airflow_client import AirflowAccess
from llm_pipeline.demo.airflow_services import start_airflow
from llm_pipeline.demo.console import Console
from llm_pipeline.demo.layout import TARGET, DemoLayout
from llm_pipeline.demo.releases import Demo

AIRFLOW_PORT = 18090
WORKERS = {"worker-1": "default", "worker-2": "default", "worker-of-target": "target-host"}
"""The queue that each worker listens to."""
WATCHED_SECONDS = 500.0
FOUND = ("still runs; following it", "already completed successfully, skipping resubmission")
"""What the log of the next try says when it goes on from the first one's stage, or takes its result."""


class CeleryDemo(Demo):
    """The demo with another executor."""

    def __init__(self, layout: DemoLayout, console: Console, settings: Mapping[str, str]) -> None:
        super().__init__(layout, console)
        self._settings = settings
        self.access: AirflowAccess | None = None

    def _start_airflow(self) -> AirflowAccess:
        self.access = start_airflow(
            self._layout.airflow,
            self._layout.airflow_port,
            releases=self._layout.configs / "releases",
            settings=self._settings,
            workers=celery_workers(WORKERS, concurrency=3),
        )
        return self.access


def main() -> int:
    """Run the release."""
    require_programs()
    layout = DemoLayout(airflow_port=AIRFLOW_PORT, configs=_configs())
    for kept in (layout.root / "store", layout.root / "work", layout.airflow):
        shutil.rmtree(kept, ignore_errors=True)  # all of the work is to be done
    with ExitStack() as until_done:
        place = Path(until_done.enter_context(tempfile.TemporaryDirectory(prefix="celery-")))
        database, broker = until_done.enter_context(postgres(place)), until_done.enter_context(redis(place))
        settings = celery_settings(database.address, broker)
        console = Console()
        console.follow_logs()
        demo = CeleryDemo(layout, console, settings)
        until_done.callback(demo.down)
        killer = _Killer(layout, demo)
        killer.start()
        begun = time.perf_counter()
        code = demo.up()
        seconds = time.perf_counter() - begun
        killer.join(timeout=5.0)
        goals = [
            goal("release_on_celery", f"exit code {code}", "exit code 0", met=code == 0),
            goal("worker_killed", killer.killed or "none", "one", met=bool(killer.killed)),
            goal("stage_found_by_the_next_try", killer.found or "no", "yes", met=bool(killer.found)),
            goal("starts_of_that_stage", str(killer.starts), "1", met=killer.starts == 1),
            _placed(layout.airflow),
            at_most("release_seconds", seconds, 600, "s"),
        ]
    return 0 if all(goals) else 1


def _configs() -> Path:
    """The repository's configs, where the demo's target has a queue."""
    given = DemoLayout()
    configs = given.root / "celery" / "configs"
    shutil.copytree(given.configs, configs, dirs_exist_ok=True)
    text = given.deployment.read_text().replace("../..", str(given.configs.parent))
    workers = f"workers: {{ targets: {{ {TARGET}: {{ queue: {WORKERS['worker-of-target']} }} }} }}\n"
    DemoLayout(configs=configs).deployment.write_text(text + workers)
    return configs


def _placed(home: Path) -> bool:
    """Whether the target's worker ran all tasks of the target, and no others."""
    ran = {name: _ran(home / "logs" / f"{name}.log") for name in WORKERS}
    own = ran.pop("worker-of-target")
    astray = [task for task in own if not _of_target(task)]
    astray += [task for tasks in ran.values() for task in tasks if _of_target(task)]
    reading = f"{len(own)} tasks, astray: {', '.join(astray) or 'none'}"
    return goal("tasks_on_the_targets_worker", reading, "all of the target's, no others", met=bool(own) and not astray)


def _ran(log: Path) -> list[str]:
    """The tasks that a worker executed."""
    return re.findall(r"Executing workload in Celery: .*? task_id='([^']+)'", log.read_text(errors="replace"))


def _of_target(task_id: str) -> bool:
    return task_id.startswith(("targets.", "promotion_"))


class _Killer(threading.Thread):
    """Kills the worker of the first accuracy task while its stage runs, and watches the next try."""

    def __init__(self, layout: DemoLayout, demo: CeleryDemo) -> None:
        super().__init__(daemon=True)
        self._layout, self._demo = layout, demo
        self.killed = ""
        self.found = ""
        self._job: Path | None = None

    @property
    def starts(self) -> int:
        """How often the stage was started whose worker was killed."""
        return len([entry for entry in self._job.parent.iterdir() if entry.name.isdecimal()]) if self._job else 0

    def run(self) -> None:
        """Wait for the stage, kill, and look into the log of the next try."""
        deadline = time.monotonic() + WATCHED_SECONDS
        while not self.killed and time.monotonic() < deadline:
            time.sleep(0.2)
            self.killed = self._kill()
        while not self.found and time.monotonic() < deadline:
            time.sleep(1.0)
            texts = [log.read_text(errors="replace") for log in self._second_tries()]
            self.found = next((said for said in FOUND for text in texts if said in text), "")

    def _kill(self) -> str:
        """Kill the whole worker that holds the task; its name, or nothing when there is no such task yet."""
        records = (self._layout.root / "work" / "jobs").glob("*/accuracy.*/*/process.json")
        alive = {path.parent: found for path in records if (found := detached.load(path)) and found.alive}
        self._job, stage = next(iter(alive.items()), (None, None))
        above = list(ancestors(stage.pid)) if stage else []
        for name in WORKERS:
            worker = detached.load(self._layout.airflow / "processes" / f"{name}.json")
            if worker and worker.pid in above:
                kill_worker(worker, above[: above.index(worker.pid)])
                return name
        return ""

    def _second_tries(self) -> Iterator[Path]:
        return self._layout.airflow.glob("logs/**/*accuracy*/**/attempt=2.log")


if __name__ == "__main__":
    raise SystemExit(main())
