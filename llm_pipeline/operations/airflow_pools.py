"""The Airflow pools that a deployment names, and what Airflow has of them.

A task of a pool that is not there, or that is smaller than what the task takes, never starts: Airflow 3.3 shows it as
`scheduled`, and says why in its scheduler's log only.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.target import Target

_UNLIMITED = -1
_ANSWER_SECONDS = 120


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


def pool_problem(pool: str, slots: int, there: dict[str, int]) -> str:
    """Why tasks of a pool would never start; empty when they would."""
    if pool not in there:
        return "Airflow has no such pool: its tasks would never start"
    if there[pool] != _UNLIMITED and there[pool] < slots:
        return f"{there[pool]} slots, and one task takes {slots}: it would never start"
    return ""


def counted_gpus(deployment: Deployment) -> dict[str, set[int]]:
    """How many GPUs the deployment says that each pool stands for; several where it contradicts itself."""
    workers = deployment.workers
    counted: dict[str, set[int]] = {}
    for group in (workers.quantization, *workers.targets.values()):
        if group.pool and group.gpus is not None:
            counted.setdefault(group.pool, set()).add(group.gpus)
    return counted


def airflow_pools() -> dict[str, int]:
    """Slots by pool, as Airflow's own command says.

    Raises:
        ConfigError: There is no Airflow in this interpreter, no database of it that this host reaches, or its answer
            cannot be read.
    """
    try:
        answer = subprocess.run(
            [sys.executable, "-m", "airflow", "pools", "list", "--output", "json"],
            capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"Airflow cannot be asked for its pools here: {error}",
            hint="run it where Airflow's scheduler runs, with its settings",
        ) from error
    try:
        rows = json.loads(answer.stdout[answer.stdout.index("[{") :])
        return {str(row["pool"]): int(row["slots"]) for row in rows}
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"what Airflow says of its pools cannot be read: {error}",
            hint="compare the pools yourself: airflow pools list",
        ) from error
