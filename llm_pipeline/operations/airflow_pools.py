"""The Airflow pools that a deployment names, what Airflow has of them, and its triggerer.

A task of a pool that is not there, or that is smaller than what the task takes, never starts: Airflow 3.3 shows it as
`scheduled`, and says why in its scheduler's log only. A task that waits in the triggerer for its container or pod keeps
its slots only in a pool that counts deferred tasks; without a triggerer it waits on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.target import Target

_UNLIMITED = -1
_ANSWER_SECONDS = 120


class AirflowPool(Frozen):
    """A pool of Airflow's.

    Attributes:
        slots: How many it has; -1 for any number.
        counts_deferred: Whether a deferred task keeps its slots.
    """

    slots: int
    counts_deferred: bool


def slots_needed(deployment: Deployment, targets: Sequence[Target]) -> dict[str, int]:
    """The most slots that one task takes, by pool; one where no target of `targets` says more."""
    workers, host = deployment.workers, deployment.quantization_host
    taken = [(workers.quantization.pool, host.count if host else 1)]
    taken += [(group.pool, 1) for group in workers.targets.values()]
    taken += [(workers.targets[t.name].pool, t.accelerator_count) for t in targets if t.name in workers.targets]
    needed: dict[str, int] = {}
    for pool, slots in taken:
        if pool:
            needed[pool] = max(slots, needed.get(pool, 1))
    return needed


def pool_problem(pool: str, slots: int, there: Mapping[str, AirflowPool], *, deferred: bool) -> str:
    """Why tasks of a pool would never start, or too many of them; empty when all is well.

    Args:
        pool: Its name.
        slots: The most that one task takes.
        there: Airflow's pools.
        deferred: Whether its tasks may be deferred while they use GPUs.
    """
    if pool not in there:
        return "Airflow has no such pool: its tasks would never start"
    found = there[pool]
    if found.slots != _UNLIMITED and found.slots < slots:
        return f"{found.slots} slots, and one task takes {slots}: it would never start"
    if deferred and not found.counts_deferred:
        return "it does not count deferred tasks: their GPUs would be given away while their containers or pods run"
    return ""


def counted_gpus(deployment: Deployment) -> dict[str, set[int]]:
    """How many GPUs the deployment says that each pool stands for; several where it contradicts itself."""
    workers = deployment.workers
    counted: dict[str, set[int]] = {}
    for group in (workers.quantization, *workers.targets.values()):
        if group.pool and group.gpus is not None:
            counted.setdefault(group.pool, set()).add(group.gpus)
    return counted


def triggerer_problem() -> str:
    """Why no task would be woken up; empty while a triggerer runs.

    Raises:
        ConfigError: Airflow cannot be asked here.
    """
    try:
        _airflow("jobs", "check", "--job-type", "TriggererJob", "--allow-multiple", "--limit", "100")
    except subprocess.CalledProcessError as error:
        if "No alive jobs found" in error.stderr + error.stdout:
            return "none runs: a task whose stage runs in a container or a pod would wait for its time limit"
        raise _cannot_be_asked("triggerer", error) from error
    except (OSError, subprocess.SubprocessError) as error:
        raise _cannot_be_asked("triggerer", error) from error
    return ""


def airflow_pools() -> dict[str, AirflowPool]:
    """The pools by name, as Airflow's own command says.

    Raises:
        ConfigError: There is no Airflow in this interpreter, no database of it that this host reaches, or its answer
            cannot be read.
    """
    try:
        said = _airflow("pools", "list", "--output", "json")
    except (OSError, subprocess.SubprocessError) as error:
        raise _cannot_be_asked("pools", error) from error
    try:
        rows = json.loads(said[said.index("[{") :])
        return {
            str(row["pool"]): AirflowPool(
                slots=int(row["slots"]), counts_deferred=str(row["include_deferred"]) == "True"
            )
            for row in rows
        }
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"what Airflow says of its pools cannot be read: {error}",
            hint="compare the pools yourself: airflow pools list",
        ) from error


def _airflow(*arguments: str) -> str:
    command = [sys.executable, "-m", "airflow", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=True).stdout


def _cannot_be_asked(subject: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"Airflow cannot be asked for its {subject} here: {error}",
        hint="run it where Airflow's scheduler runs, with its settings",
    )
