"""Twenty releases of ten models at once on Airflow's Celery executor, with two GPU slots and workers killed at random.

    PYTHONPATH=CLUSTER_SITE python benchmarks/scale.py [--models 10] [--kills 6] [--keep]

Real: Airflow's services, PostgreSQL, Redis, three Celery workers, our DAGs, operators, claims, store, runner and stage
processes. Light: what the stages do (`scale_stages.py`), so that two cores are enough. Each model has two releases that
are triggered at the same moment. One model's accuracy gate says NO_GO, and one build fails once. All stages that take
GPUs share a pool of two slots. Workers are ended with SIGKILL, whole, and come back some seconds later.

Shown, one line a goal (exit code 1 when one is missed): every release ended as it should, by the store's records; no
release overtook another of its model; nothing starved; never more than two stages held a GPU, by what the stages
themselves wrote; stages of killed workers were found again or tried again. It needs the packages of
docker/constraints/cluster-py311.txt beside the control environment, which `make bench-scale` fetches, and the programs
of PostgreSQL and Redis (`apt-get install postgresql redis-server`).

    python benchmarks/scale.py growth [--releases 10 100 1000] [--configs 10 100 1000]

counts every call of the store that one release makes while so many others are in it: planning, claim, keys, leases,
records, report and summaries are the product's, and the stages do no model's work. A listing counts once for each 1,000
names, as S3 pages it. Then the DAG files of so many release configs are parsed; seconds are CPU seconds. Goals: calls
do not grow with others' releases; a release config is parsed in 45 ms, and 1,000 of them in one folder within the 30 s
after which Airflow gives up.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.goals import at_least, at_most, goal
from llm_pipeline.base import detached
from llm_pipeline.demo.local_airflow import AirflowAccess, AirflowClient, start_airflow, stop_airflow
from llm_pipeline.inspection.release_summaries import read_releases
from llm_pipeline.release.claim import readable_claims
from llm_pipeline.store import ArtifactStore, open_store

ROOT = Path(__file__).resolve().parents[1]
AIRFLOW_PORT, POSTGRES_PORT, REDIS_PORT = 18091, 18932, 18979
POOL, SLOTS = "gpus", 2
WORKERS = ("worker-1", "worker-2", "worker-3")
CONCURRENCY = 4
REFUSED_MODEL = "m9"
LONGEST_SECONDS = 2400.0
SECONDS_BETWEEN_KILLS = (20.0, 45.0)
SECONDS_UNTIL_BACK = 8.0
STARVED_SECONDS = 600.0
FOUND = ("still running; following it", "still runs; following it", "skipping resubmission")

RELEASE = """
description: One of two releases of {model} that want their turn at the same time.
model: {{ id: demo/{model} }}
recipes: [small]
targets: [{model}]
policy: quick
deployment: here
evaluation: {{ tasks: [a_task], served_tasks: [a_task] }}
workload: {{ prompts: prompts.jsonl, rate_per_second: 20, duration_seconds: 30 }}
approval: {{ required: false }}
"""
POLICY = """
load_test: { service_level: { first_token_milliseconds: 100, end_to_end_milliseconds: 200 } }
canary: { steps_percent: [100] }
"""
TARGET = "{ accelerator: cpu, accelerator_count: 0, engine: openvino_cpu }"
DEPLOYMENT = """
store: {root}/store
work_root: {root}/work
state_root: {root}/state
environments: {{ control: {root}/python, model: {root}/python }}
triton_home: {root}/triton
guard_schedule: null
workers:
  quantization: {group}
  targets:
{targets}
places:
{places}
"""


def main() -> int:
    """Run the releases and judge how they ended, or count what grows."""
    options = _options()
    if options.what == "growth":
        return 0 if all(_growth(options.releases, options.configs)) else 1
    random.seed(options.seed)
    with ExitStack() as until_done:
        place = Path(tempfile.mkdtemp(prefix="scale-"))
        if not options.keep:
            until_done.callback(shutil.rmtree, place, ignore_errors=True)
        models = [f"m{number}" for number in range(options.models)]
        write_project(place, models)
        database, broker = until_done.enter_context(postgres(place)), until_done.enter_context(redis(place))
        until_done.callback(stop_airflow, place / "airflow")
        cluster = Cluster(place, celery_settings(database, broker))
        until_done.enter_context(cluster.client)
        states, kills = _run(cluster, database, models, options.kills)
        return 0 if all(_judged(cluster, database, models, states, kills)) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=("releases", "growth"), default="releases")
    parser.add_argument("--releases", type=int, nargs="+", default=[10, 100, 1000], help="growth: in the store")
    parser.add_argument("--configs", type=int, nargs="+", default=[10, 100, 1000], help="growth: in one folder")
    parser.add_argument("--models", type=int, default=10, help="each has two releases")
    parser.add_argument("--kills", type=int, default=6, help="workers that are killed")
    parser.add_argument("--seed", type=int, default=21, help="of the moments and the workers")
    parser.add_argument("--keep", action="store_true", help="leave the directory with logs and store")
    return parser.parse_args()


class Cluster:
    """Airflow with its workers, one of which ends now and then."""

    def __init__(self, place: Path, settings: dict[str, str]) -> None:
        self.place, self.home = place, place / "airflow"
        self._settings = settings
        self.start()
        (self.home / "airflow.db").touch()  # the database is made: workers come back without a look at it
        self.client = AirflowClient(self.start())

    def start(self) -> AirflowAccess:
        """Start what does not run."""
        return start_airflow(
            self.home,
            AIRFLOW_PORT,
            releases=self.place / "configs/releases",
            settings=self._settings,
            workers={
                name: (
                    *("celery", "worker", "--concurrency", str(CONCURRENCY), "--skip-serve-logs"),
                    *("--celery-hostname", name, "--queues", "default"),
                )
                for name in WORKERS
            },
        )

    def process(self, name: str) -> detached.DetachedProcess:
        """The process of a service or of a worker."""
        found = detached.load(self.home / "processes" / f"{name}.json")
        if found is None:
            raise SystemExit(f"{name} was never started")
        return found


def _run(cluster: Cluster, database: str, models: Sequence[str], kills: int) -> tuple[dict[str, str], list[str]]:
    """How each DAG's run ended, and which workers were killed during what."""
    client = cluster.client
    client.call("POST", "/api/v2/pools", json={"name": POOL, "slots": SLOTS})
    dags = [f"release__{model}-{which}" for model in models for which in "ab"]
    deadline = time.monotonic() + 300
    while not all(client.has_dag(dag) for dag in dags):
        if time.monotonic() > deadline:
            raise SystemExit(f"the DAGs are not there: {client.import_errors()}")
        time.sleep(1)
    for dag in dags:
        client.unpause(dag)
    killer = _Killer(cluster, kills)
    begun = time.monotonic()
    for dag in dags:
        client.trigger(dag)
    killer.start()
    states: dict[str, str] = {}
    while len(states) < len(dags) and time.monotonic() - begun < LONGEST_SECONDS:
        time.sleep(5)
        query = "SELECT dag_id, state FROM dag_run WHERE state IN ('success', 'failed')"
        states = dict(rows(database, query))
    killer.over.set()
    killer.join()
    print(f"{len(dags)} releases in {time.monotonic() - begun:.0f} s, killed: {', '.join(killer.kills)}")
    return {dag: states.get(dag, "unfinished") for dag in dags}, killer.kills


class _Killer(threading.Thread):
    """Ends a worker whose task has a stage that runs, a random one, again and again; it comes back."""

    def __init__(self, cluster: Cluster, kills: int) -> None:
        super().__init__(daemon=True)
        self._cluster, self._left = cluster, kills
        self.kills: list[str] = []
        self.over = threading.Event()

    def run(self) -> None:
        """Kill until there were enough."""
        while self._left and not self.over.wait(random.uniform(*SECONDS_BETWEEN_KILLS)):  # noqa: S311
            working = list(self._working())
            if not working:
                continue
            name, worker, stage = random.choice(working)  # noqa: S311
            kill_worker(worker)
            self.kills.append(f"{name} during {stage}")
            self._left -= 1
            self.over.wait(SECONDS_UNTIL_BACK)
            self._cluster.start()

    def _working(self) -> Iterator[tuple[str, psutil.Process, str]]:
        """The workers that wait for a stage now, with the stage."""
        names = {self._cluster.process(name).pid: name for name in WORKERS}
        for record in (self._cluster.place / "work/jobs").glob("*/*/*/process.json"):
            stage = detached.load(record)
            with suppress(psutil.NoSuchProcess):
                above = psutil.Process(stage.pid).parents() if stage and stage.alive else []
                yield from ((names[one.pid], one, record.parts[-3]) for one in above if one.pid in names)


def _judged(
    cluster: Cluster, database: str, models: Sequence[str], states: dict[str, str], kills: Sequence[str]
) -> Iterator[bool]:
    store = open_store(f"file://{cluster.place}/store")
    wrong = "; ".join(_wrong_endings(store, models, states))
    right = f"{len(states) - wrong.count(': ')} of {len(states)} {wrong}".strip()
    yield goal("releases_that_ended_right", right, str(len(states)), met=not wrong)
    left = [model for model, state in readable_claims(store)[0].items() if state.everyone]
    yield goal("claims_left", ", ".join(left) or "none", "none", met=not left)
    spans = _spans(cluster.place / "work/gpu.jsonl")
    most, when = _most_at_once(spans)
    yield goal("gpu_stages_at_once", f"{most} of {len(spans)} {when}".strip(), f"at most {SLOTS}", met=most <= SLOTS)
    # Between the moment at which a GPU task could have begun and the one at which it began:
    waits = f"SELECT max(extract(epoch FROM start_date - scheduled_dttm)) FROM task_instance WHERE pool = '{POOL}'"  # noqa: S608
    yield at_most("longest_wait_for_a_slot", float(rows(database, waits)[0][0] or 0), STARVED_SECONDS, "s")
    yield at_least("workers_killed", len(kills), 1)
    later = [log for log in cluster.home.glob("logs/**/attempt=*.log") if not log.name.endswith("=1.log")]
    found = sum(any(words in log.read_text(errors="replace") for words in FOUND) for log in later)
    yield goal("stages_found_again", f"{found} found, {len(later)} tries after the first", "1 found", met=found > 0)
    print(f"states: {json.dumps(states)}")


def _wrong_endings(store: ArtifactStore, models: Sequence[str], states: dict[str, str]) -> Iterator[str]:
    verdicts = {
        one.row.release_id.rpartition("-")[0].rpartition("-")[0]: one.row.verdict for one in read_releases(store)[0]
    }
    for model in models:
        wanted = ("failed", "NO_GO") if model == REFUSED_MODEL else ("success", "GO")
        for name in (f"{model}-a", f"{model}-b"):
            if (ended := (states[f"release__{name}"], verdicts.get(name, "none"))) != wanted:
                yield f"{name}: {', '.join(ended)}"


def _spans(record: Path) -> list[tuple[float, float, str]]:
    """When each stage held its GPU; one that never said that it ended held it as long as nothing else of it came."""
    begun: dict[int, tuple[float, str]] = {}
    spans = []
    for line in record.read_text().splitlines():
        note = json.loads(line)
        if note["what"] == "begun":
            begun[note["pid"]] = (note["at"], f"{note['release']} {note['stage']}")
        else:
            at, name = begun.pop(note["pid"])
            spans.append((at, note["at"], name))
    return spans


def _most_at_once(spans: Sequence[tuple[float, float, str]]) -> tuple[int, str]:
    """The most stages that held a GPU at the same moment, and which, if they were too many."""
    most: list[str] = []
    for at, _, _ in spans:
        there = [name for begun, ended, name in spans if begun <= at < ended]
        most = max(most, there, key=len)
    return len(most), f"({', '.join(most)})" if len(most) > SLOTS else ""


def celery_settings(database: str, broker: str) -> dict[str, str]:
    """Airflow's settings for Celery; a worker that is gone is noticed after 20 s."""
    return {
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        "AIRFLOW__CORE__PARALLELISM": "32",
        "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "60",
        "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "15",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2:{database}",
        "AIRFLOW__CELERY__BROKER_URL": broker,
        "AIRFLOW__CELERY__RESULT_BACKEND": f"db+postgresql+psycopg2:{database}",
        "AIRFLOW__CELERY__WORKER_ENABLE_REMOTE_CONTROL": "False",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        "C_FORCE_ROOT": "true",
    }


def kill_worker(worker: psutil.Process) -> None:
    """End a whole worker as a lost machine does, all but the stages, which are processes of their own sessions."""
    with suppress(psutil.NoSuchProcess):
        for process in (*worker.children(recursive=True), worker):
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getsid(process.pid) == os.getsid(worker.pid):
                    process.kill()


@contextmanager
def postgres(place: Path) -> Iterator[str]:
    """A PostgreSQL with an empty database; gives `//user:password@host:port/database`."""
    binaries = max(Path("/usr/lib/postgresql").glob("*/bin"))
    place.chmod(0o755)
    data, secret, password = place / "postgres", place / "password", secrets.token_hex(16)
    data.mkdir()
    secret.write_text(password)
    for path in (data, secret):
        shutil.chown(path, "postgres")

    def run(program: str, *arguments: str) -> None:
        command = ["runuser", "-u", "postgres", "--", str(binaries / program), "--pgdata", str(data), *arguments]
        subprocess.run(command, check=True, capture_output=True)

    run("initdb", "--auth", "scram-sha-256", "--pwfile", str(secret))
    options = f"-p {POSTGRES_PORT} -c listen_addresses=127.0.0.1 -c unix_socket_directories={data}"
    options += " -c max_connections=300"
    run("pg_ctl", "--wait", "--log", str(data / "log"), "--options", options, "start")
    try:
        yield f"//postgres:{password}@127.0.0.1:{POSTGRES_PORT}/postgres"
    finally:
        run("pg_ctl", "--wait", "--mode", "immediate", "stop")


def rows(database: str, query: str) -> list[tuple[Any, ...]]:
    """What a query gives."""
    import psycopg2

    with closing(psycopg2.connect(f"postgresql:{database}")) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found


@contextmanager
def redis(place: Path) -> Iterator[str]:
    """A Redis; gives its URL."""
    command = ["redis-server", "--port", str(REDIS_PORT), "--bind", "127.0.0.1", "--save", "", "--dir", str(place)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            yield f"redis://127.0.0.1:{REDIS_PORT}/0"
        finally:
            server.terminate()


READS = ("read_document", "read_file", "manifest", "fetch", "check", "exists", "provenance")
WRITES = ("write_document", "write_file", "delete_document", "publish")
NAMES_A_PAGE, RELEASES_A_MODEL = 1000, 5
PARSE_MILLISECONDS, MANY_CONFIGS, IMPORT_SECONDS = 45.0, 1000, 30.0
"""The last is Airflow's own limit for one file, `dagbag_import_timeout`."""


def _growth(releases: Sequence[int], configs: Sequence[int]) -> Iterator[bool]:
    with tempfile.TemporaryDirectory(prefix="scale-growth-") as home:
        os.environ |= {"AIRFLOW_HOME": home, "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
        os.environ["AIRFLOW__LOGGING__LOGGING_LEVEL"] = "ERROR"
        sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/doubles")]
        calls = {stored: _calls_of_a_release(stored) for stored in releases}
        yield at_most("growth_of_store_calls", calls[releases[-1]] / calls[releases[0]], 1.1, "times")
        slowest = {number: _slowest_parse(number) for number in configs}[configs[-1]]
        yield at_most("parse_of_a_release_config", slowest / configs[-1] * 1e3, PARSE_MILLISECONDS, "CPU ms")
        if configs[-1] >= MANY_CONFIGS:
            yield at_most(f"parse_of_{configs[-1]}_release_configs", slowest, IMPORT_SECONDS, "CPU s")


def _calls_of_a_release(stored: int) -> int:
    import store_history
    from in_process_runner import InProcess, scripted_stages

    from llm_pipeline import local_run
    from llm_pipeline.adapters.local.store import LocalStore
    from llm_pipeline.release import execute

    calls: Counter[str] = Counter()

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            found = method(*arguments, **options)
            calls["reads" if name in READS else "writes" if name in WRITES else "listings"] += 1
            calls["listings"] += len(found) // NAMES_A_PAGE if name == "list_documents" else 0
            return found

        return wrapper

    with tempfile.TemporaryDirectory(prefix="scale-growth-") as place:
        root = Path(place)
        write_project(root, ["m0"])
        history = store_history.History(root)
        for number in range(stored):
            name = f"other-{number // RELEASES_A_MODEL}"
            store_history.MODEL = f"demo/{name}"
            history.release(number, name)
        stages = scripted_stages()
        stages.REAL = (*stages.REAL, "report")
        local_run.Runners, execute.load_stage = InProcess(), stages.load_stage
        kept = {name: getattr(LocalStore, name) for name in (*READS, *WRITES, "list_documents")}
        try:
            for name, method in kept.items():
                setattr(LocalStore, name, counted(name, method))
            verdict = local_run.LocalRun(root / "configs/releases/m0-a.yaml", approve=lambda _line: True).run()
        finally:
            for name, method in kept.items():
                setattr(LocalStore, name, method)
    print(f"{stored} releases in the store: {verdict.value}, {dict(calls)}", flush=True)
    return sum(calls.values())


def _slowest_parse(number: int) -> float:
    """CPU seconds of the DAG file that takes longest with so many release configs."""
    from llm_pipeline_airflow import discovery

    with tempfile.TemporaryDirectory(prefix="scale-growth-") as place:
        releases = Path(place, "configs", "releases")
        shutil.copytree(ROOT / "configs", releases.parent)
        text = (releases / "llama-3.1-8b-instruct.yaml").read_text()
        shutil.rmtree(releases)
        releases.mkdir()
        for one in range(number):
            (releases / f"model-{one}.yaml").write_text(re.sub(r"(\bid: [\w./-]+)", rf"\1-{one}", text, count=1))
        files: dict[str, Callable[[tuple[Path, ...]], Any]] = {
            "releases": discovery.dags_of,
            "release_config_errors": discovery.check_release_configs,
        }
        seconds = {}
        for name, parse in files.items():
            clock = time.process_time()
            parse((releases,))
            seconds[name] = round(time.process_time() - clock, 2)
    print(f"{number} release configs, CPU s: {seconds}", flush=True)
    return max(seconds.values())


def write_project(root: Path, models: Sequence[str]) -> None:
    """Write the releases `<model>-a` and `<model>-b` of each model, and all that they name."""
    places = "\n".join(f"  {model}: {_place(18600 + 12 * number)}" for number, model in enumerate(models))
    group = f"{{ pool: {POOL}, gpus: {SLOTS} }}"
    targets = "\n".join(f"    {model}: {group}" for model in models)
    files = {
        "policies/quick.yaml": POLICY,
        "deployments/here.yaml": DEPLOYMENT.format(root=root, group=group, targets=targets, places=places),
        "quantization/small.yaml": "weights: int8_weight_only",
        "prompts.jsonl": '{"prompt": "a"}',
        **{f"targets/{model}.yaml": TARGET for model in models},
    }
    for model in models:
        for which in "ab":
            files[f"releases/{model}-{which}.yaml"] = RELEASE.format(model=model)
    for name, text in files.items():
        path = root / "configs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "work").mkdir()
    python = root / "python"
    # A runner gives the interpreter options, too.
    python.write_text(
        '#!/bin/sh\nuntil [ "$1" = llm_pipeline ]; do shift; done\nshift\n'
        f'exec {sys.executable} {ROOT}/benchmarks/scale_stages.py "$@"\n'
    )
    python.chmod(python.stat().st_mode | stat.S_IXUSR)


def _place(port: int) -> str:
    slots = []
    for number, name in enumerate(("staging", "blue", "green")):
        first = port + 3 * number
        slots.append(f"{name}: {{ http: {first}, grpc: {first + 1}, metrics: {first + 2}, openai: {first + 3} }}")
    return f"{{ {', '.join(slots)}, router: {{ port: {port + 9}, admin_port: {port + 10} }} }}"


if __name__ == "__main__":
    raise SystemExit(main())
