"""PostgreSQL and Redis of a benchmark's own on loopback, and Airflow's settings for Celery with them.

Needs the packages of docker/constraints/cluster-py311.txt beside the control environment (`make bench-scale` fetches
them), and the programs of PostgreSQL and Redis (`apt-get install postgresql redis-server`).
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from llm_pipeline.base import detached

POSTGRES_PORT, REDIS_PORT = 18932, 18979
DATABASE = "airflow"


@dataclass(frozen=True)
class Postgres:
    """A running PostgreSQL.

    Attributes:
        address: `user:password@host:port/database`.
    """

    address: str
    _psql: tuple[str, ...]
    _password: str

    def rows(self, query: str) -> list[list[str]]:
        """What a query gives, as text."""
        command = [*self._psql, "--no-align", "--tuples-only", "--field-separator", "\t", "--command", query]
        environment = {"PGPASSWORD": self._password}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return [line.split("\t") for line in done.stdout.splitlines()]

    def statements(self) -> int:
        """How many statements were run since it started."""
        return int(self.rows("SELECT coalesce(sum(calls), 0) FROM pg_stat_statements")[0][0])


def require_programs() -> None:
    """End with a word if a program or a package is missing."""
    missing = [name for name in ("redis-server", "runuser") if shutil.which(name) is None]
    if not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        missing.append("initdb of PostgreSQL")
    if missing or importlib.util.find_spec("celery") is None:
        raise SystemExit(f"missing: {', '.join(missing) or 'the packages of docker/constraints/cluster-py311.txt'}")


def celery_settings(database: str, broker: str) -> dict[str, str]:
    """Airflow's settings for Celery; a worker that is gone is noticed after 20 s."""
    return {
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://{database}",
        "AIRFLOW__CELERY__BROKER_URL": broker,
        "AIRFLOW__CELERY__RESULT_BACKEND": f"db+postgresql+psycopg2://{database}",
        "AIRFLOW__CELERY__WORKER_ENABLE_REMOTE_CONTROL": "False",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        "C_FORCE_ROOT": "true",
    }


def celery_workers(queues: Mapping[str, str], concurrency: int) -> dict[str, tuple[str, ...]]:
    """Arguments of `airflow` for workers by name, each with the queue that it listens to."""
    return {
        name: (
            *("celery", "worker", "--concurrency", str(concurrency), "--skip-serve-logs"),
            *("--celery-hostname", name, "--queues", queue),
        )
        for name, queue in queues.items()
    }


def kill_worker(worker: detached.DetachedProcess, tasks: Sequence[int]) -> None:
    """End a whole worker as a lost machine does, all but the stages, which are processes of their own sessions."""
    for pid in tasks:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)


@contextmanager
def postgres(place: Path) -> Iterator[Postgres]:
    """A PostgreSQL with an empty database, which counts its statements."""
    binaries = max(Path("/usr/lib/postgresql").glob("*/bin"))
    place.chmod(0o755)
    data, password = place / "postgres", secrets.token_hex(16)
    data.mkdir()
    shutil.chown(data, "postgres")
    secret = place / "password"
    secret.write_text(password)
    shutil.chown(secret, "postgres")
    as_postgres = ["runuser", "-u", "postgres", "--"]
    initialize = [binaries / "initdb", "--pgdata", data, "--auth", "scram-sha-256", "--pwfile", secret]
    subprocess.run([*as_postgres, *map(str, initialize)], check=True, capture_output=True)
    options = f"-p {POSTGRES_PORT} -c listen_addresses=127.0.0.1 -c unix_socket_directories={data}"
    options += " -c shared_preload_libraries=pg_stat_statements -c max_connections=300"
    control = [*as_postgres, str(binaries / "pg_ctl"), "--pgdata", str(data), "--wait"]
    subprocess.run(
        [*control, "--log", str(data / "log"), "--options", options, "start"], check=True, capture_output=True
    )
    try:
        user = ["--host", "127.0.0.1", "--port", str(POSTGRES_PORT), "--username", "postgres"]
        subprocess.run([str(binaries / "createdb"), *user, DATABASE], env={"PGPASSWORD": password}, check=True)
        address = f"postgres:{password}@127.0.0.1:{POSTGRES_PORT}/{DATABASE}"
        server = Postgres(address, (str(binaries / "psql"), *user, "--dbname", DATABASE), password)
        server.rows("CREATE EXTENSION pg_stat_statements")
        yield server
    finally:
        subprocess.run([*control, "--mode", "immediate", "stop"], check=False, capture_output=True)


@contextmanager
def redis(place: Path) -> Iterator[str]:
    """A Redis; gives its URL."""
    command = ["redis-server", "--port", str(REDIS_PORT), "--bind", "127.0.0.1", "--save", "", "--dir", str(place)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            yield f"redis://127.0.0.1:{REDIS_PORT}/0"
        finally:
            server.terminate()


def ancestors(pid: int) -> Iterator[int]:
    """The parents of a process, nearest first, without init."""
    while pid > 1:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except FileNotFoundError:
            return
        pid = int(stat[stat.rindex(")") + 2 :].split()[1])
        if pid > 1:
            yield pid


def descendants(pid: int) -> list[int]:
    """Processes below one, without those that began a session of their own, as stages do."""
    found: list[int] = []
    for child in _children(pid):
        if os.getsid(child) == os.getsid(pid):
            found += [child, *descendants(child)]
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of its children that have ended, and of those that run."""
    total = _own_seconds(pid)
    return total + sum(cpu_seconds(child) for child in _children(pid))


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    with suppress(FileNotFoundError, ProcessLookupError):
        return [int(child) for task in tasks for child in task.read_text().split()]
    return []


def _own_seconds(pid: int) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    fields = stat[stat.rindex(")") + 2 :].split()
    return sum(int(fields[number]) for number in (11, 12, 13, 14)) / os.sysconf("SC_CLK_TCK")
