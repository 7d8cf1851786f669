"""The GPUs of a host that a stage takes, held by its own process for as long as it runs.

Airflow's pool counts tasks. When a worker is lost, Airflow gives its slots to others, and the stage that the worker
started goes on: without this, two stages would share a GPU until the first one ends or its next try finds it. So a
stage holds locks on files of its host as well. The kernel frees them when the process ends, however it does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from llm_pipeline.base.errors import Transient
from llm_pipeline.base.file_lock import flocked_within
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.progress import made_progress
from llm_pipeline.release.contract import HostGpus
from llm_pipeline.release.flow import step_named
from llm_pipeline.release.measured_cost import target_at
from llm_pipeline.release.step import Gpus, Machine

if TYPE_CHECKING:
    from llm_pipeline.config.deployment import Deployment, WorkerGroup
    from llm_pipeline.release.record import ReleaseRecord

_FOLDER = "gpus"
_POLL_SECONDS = 0.5

log = get_logger(__name__)


def gpus_taken(
    deployment: Deployment, record: ReleaseRecord, stage: str, subject: str, variant: str = ""
) -> HostGpus | None:
    """What a stage takes of its host; None where it takes nothing, or nobody said how many GPUs the host has.

    Args:
        deployment: Where it runs.
        record: Of its release.
        stage: Its name.
        subject: What it works on.
        variant: The one that was chosen for its target.
    """
    step, workers = step_named(stage), deployment.workers
    group: WorkerGroup | None
    if step is None or step.gpus is not Gpus.TAKEN:
        return None
    if step.machine is Machine.QUANTIZATION_HOST:
        host = deployment.quantization_host
        group, taken = workers.quantization, host.count if host else 1
    else:
        group = workers.targets.get(record.place_of(subject))
        taken = max(1, target_at(record.release, stage, subject, variant).accelerator_count)
    if group is None or group.pool is None or group.gpus is None:
        return None
    return HostGpus(pool=group.pool, there=group.gpus, taken=min(taken, group.gpus))


def gpu_indices(deployment: Deployment, record: ReleaseRecord, stage: str, subject: str) -> tuple[int, ...] | None:
    """The GPUs of its host that a stage's own process may use, where the deployment names them; None for all."""
    step = step_named(stage)
    if step is None or step.gpus is not Gpus.TAKEN:
        return None
    if step.machine is Machine.QUANTIZATION_HOST:
        return deployment.quantization_host.gpus if deployment.quantization_host else None
    place = deployment.places.get(record.place_of(subject))
    staging = place.servers_here().get("staging") if place else None
    return staging.gpus if staging else None


@contextmanager
def held(gpus: HostGpus | None, work_root: Path) -> Iterator[None]:
    """Hold a stage's GPUs in the block; waits until so many are free, which prolongs its time limit."""
    if gpus is None:
        yield
        return
    folder = work_root / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as locks:
        with ExitStack() as turn:  # one takes at a time, so that a stage that needs many is not starved
            _wait_for(gpus, lambda: _locked(folder / f"{gpus.pool}.turn", turn))
            free = [folder / f"{gpus.pool}.{number}" for number in range(gpus.there)]
            for _ in range(gpus.taken):
                _wait_for(gpus, lambda: _one_locked(free, locks))
        yield


def _wait_for(gpus: HostGpus, done: Callable[[], bool]) -> None:
    told = False
    while not done():
        if not told:
            log.info("waiting for GPUs: stages of lost workers may still hold them", pool=gpus.pool, needed=gpus.taken)
            told = True
        made_progress()  # whoever holds them has a limit of its own
        time.sleep(_POLL_SECONDS)


def _one_locked(free: list[Path], locks: ExitStack) -> bool:
    for file in free:
        if _locked(file, locks):
            free.remove(file)
            return True
    return False


def _locked(file: Path, locks: ExitStack) -> bool:
    with suppress(_Taken):
        locks.enter_context(flocked_within(file, 0.0, _Taken(f"{file} is taken")))
        return True
    return False


class _Taken(Transient):
    """Another stage holds it."""
