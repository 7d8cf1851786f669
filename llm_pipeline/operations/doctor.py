"""What this host has of what a deployment asks for, looked at by doing: `llm-pipeline doctor`.

`plan` judges a release from its files, with ports and credentials; `status` says how what serves is. This starts
interpreters, writes to the store, asks the GPU driver: run it on each host that stages or servers run on. A look says
what it found, or raises what is wrong.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from llm_pipeline.artifacts.engine_description import HostFacts, driver_warning, read_host_facts, target_problems
from llm_pipeline.base.adapters import Adapter, Group, adapter
from llm_pipeline.base.errors import ConfigError, PipelineError, Unsupported
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.target import Target
from llm_pipeline.engines.builder import engine_adapter, own_server_of
from llm_pipeline.notifications.telling import check_channel
from llm_pipeline.planning import host
from llm_pipeline.runners.stage_environment import named_secrets
from llm_pipeline.serving.triton_runtime import inspect_interpreter, open_home
from llm_pipeline.store import open_store

State = Literal["ok", "warning", "failed"]
_START_SECONDS = 60
_FIND_MODULES = (
    "import sys; from importlib.util import find_spec; print(*[name for name in sys.argv[1:] if not find_spec(name)])"
)
_VERSION = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
_LITTLE_DISK = 20e9
_UNLIMITED = -1
_ANSWER_SECONDS = 120


class Check(Frozen):
    """One thing that was looked at.

    Attributes:
        subject: What.
        detail: What was found.
        fix: What to do about it; empty where nothing is.
    """

    subject: str
    state: State
    detail: str
    fix: str = ""


class _Doubt(ConfigError):
    """What is worth a warning."""


def _looked(subject: str, look: Callable[..., str], *arguments: object, worst: State = "failed") -> Check:
    """A look, of which nothing is worse than `worst`: what is missing may be on another host, or not needed yet."""
    try:
        return Check(subject=subject, state="ok", detail=look(*arguments))
    except PipelineError as error:
        where = f"{error.where}: " if error.where else ""
        state: State = "warning" if isinstance(error, _Doubt) else worst
        return Check(subject=subject, state=state, detail=f"{where}{error.message}", fix=error.hint)


def _told(subject: str, words: str, state: State = "ok", fix: str = "") -> Check:
    """What was found before; what is well needs no fix."""
    return Check(subject=subject, state=state, detail=words, fix="" if state == "ok" else fix)


def examine(
    deployment: Deployment,
    targets: Sequence[Target] = (),
    task_modules: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> tuple[Check, ...]:
    """Look at everything.

    Args:
        deployment: What should be there.
        targets: Targets that this host may be meant for; a GPU host should be one of them.
        task_modules: Python modules that evaluation tasks need, by task.
    """
    return (
        _told("deployment", f"{deployment.name}: {', '.join(deployment.places) or 'no place'}"),
        *_adapters(deployment, targets),
        *_runtimes(deployment, targets),
        *(_looked(f"task {task}", _modules, deployment, modules) for task, modules in task_modules.items()),
        _looked("store", _store, deployment),
        _looked("work_root", _directory, deployment.work_root),
        _looked("state_root", _directory, deployment.state_root),
        _looked("triton", _triton, deployment),
        *_secrets(deployment),
        *_pools(deployment, targets),
        *_gpus(targets),
    )


def _adapters(deployment: Deployment, targets: Sequence[Target]) -> Iterator[Check]:
    """What the adapters of all that the deployment names say of it, as far as they look at anything."""
    named: list[tuple[str, Group, str, tuple[Any, ...]]] = [
        (f"environment {name}", "runners", one.runner, (one,)) for name, one in deployment.environments.items()
    ]
    named.append(("store's address", "stores", deployment.store.kind, (deployment.store,)))
    for name, place in deployment.places.items():
        named.append((f"staging of {name}", "server_controls", place.staging.kind, (place.staging,)))
        named.append((f"router of {name}", "routers", place.router.kind, (place.router,)))
        if place.metrics is not None:
            settings = (place.metrics, place.router)
            named.append((f"metrics of {name}", "metric_sources", place.metrics.kind, settings))
    named += [(f"engine of {one.name}", "engines", one.engine, (one.engine_options,)) for one in targets]
    for subject, group, kind, settings in named:
        found: Adapter = adapter(group, kind)
        if found.probe is not None:
            yield _looked(subject, found.probe, *settings)
    for name, channel in deployment.notifications.items():
        yield _looked(f"notifications by {name}", check_channel, channel, worst="warning")


def _runtimes(deployment: Deployment, targets: Sequence[Target]) -> Iterator[Check]:
    """Engines that are Python packages, or servers of their own, where the servers of this host need them."""
    for target in targets:
        engine, place = engine_adapter(target.engine), deployment.places.get(target.name)
        if engine.beside_triton and place is not None and place.servers_here():
            where = (deployment, place.environment)
            yield _looked(f"runtime of {target.name}", _runtime, *where, engine.runtime, worst="warning")
        if (own := own_server_of(target)) and place is not None:
            where = (deployment, place.environment)
            yield _looked(f"server of {target.name}", _command, *where, own.program, worst="warning")


def _command(deployment: Deployment, environment: str, program: str) -> str:
    found = Path(deployment.interpreter(environment)).parent / program
    if not found.exists():
        hint = "install it there, or set server: triton in the target"
        raise Unsupported(f"there is no command {found}", where=f"environment {environment}", hint=hint)
    return str(found)


def _runtime(deployment: Deployment, environment: str, distribution: str) -> str:
    python, where = deployment.interpreter(environment), f"environment {environment}"
    hint = "install it there: the models' code in Triton imports it"
    missing = Unsupported(f"{python} has no {distribution}", where=where, hint=hint)
    return f"{distribution} {_asked(python, _VERSION, distribution, otherwise=missing)} in {where}"


def _asked(python: str, code: str, *arguments: str, otherwise: PipelineError | None = None) -> str:
    """What an interpreter prints; where the code fails, `otherwise` is raised.

    Raises:
        Unsupported: It does not start.
    """
    command = [python, "-c", code, *arguments]
    try:
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=_START_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        if otherwise is not None and isinstance(error, subprocess.CalledProcessError):
            raise otherwise from error
        raise Unsupported(f"{python} does not start: {error}") from error
    return done.stdout.strip()


def _modules(deployment: Deployment, modules: Sequence[str]) -> str:
    """Whether an evaluation task finds what it imports, where that is an interpreter of this host."""
    environment, needed = deployment.environments.get("model"), ", ".join(modules)
    python = environment.interpreter_here() if environment is not None else None
    if python is None:
        raise _Doubt(f"needs {needed} in the image that models are evaluated in: not looked at")
    if missing := _asked(python, _FIND_MODULES, *modules).split():
        fix = "install their packages there, or leave the task out"
        raise Unsupported(f"{python} lacks {', '.join(missing)}", hint=fix)
    return f"has {needed}"


def _store(deployment: Deployment) -> str:
    """Write, read and remove a document."""
    store, name = open_store(deployment.store), f"doctor/{uuid.uuid4().hex}.json"
    store.write_document(name, {"host": platform.node()}, None)
    store.delete_document(name)
    return f"{store.uri}: written and removed"


def _directory(path: str) -> str:
    parent = host.existing_parent(path)
    free = host.free_bytes(parent)
    if not os.access(parent, os.W_OK):
        raise ConfigError(f"{parent} is not writable", hint="change its owner")
    detail = f"{path}, {free / 1e9:.0f} GB free"
    if free < _LITTLE_DISK:
        raise _Doubt(detail, hint="`plan` says what a release needs")
    return detail


def _triton(deployment: Deployment) -> str:
    home = open_home(Path(deployment.triton_home))
    environments = sorted({place.environment for place in deployment.places.values()}) or ["model"]
    pythons = (inspect_interpreter(Path(deployment.interpreter(name)), home).version for name in environments)
    versions = ", ".join(f"{version} ({name})" for name, version in zip(environments, pythons, strict=True))
    return f"{home.program}, for its models Python {versions}"


def _secrets(deployment: Deployment) -> Iterator[Check]:
    """Where each secret of the deployment comes from, by its variable's name."""
    connections = deployment.airflow_connections
    for variable in sorted(named_secrets(deployment)):
        here, connection = bool(os.environ.get(variable)), connections.get(variable)
        words, fix = "the environment" if here else "not set", ""
        if connection and here:
            words = f"the environment, and Airflow's connection {connection}"
            fix = "keep one of them: what Airflow runs refuses both"
        elif connection:
            words = f"Airflow's connection {connection}, for what Airflow runs"
        yield _told(f"secret {variable}", words, "failed" if fix else "ok", fix)


def _pools(deployment: Deployment, targets: Sequence[Target]) -> Iterator[Check]:
    """What Airflow must have; it is asked for nothing that the deployment does not need.

    A task of a pool that is not there, or that is smaller than what the task takes, never starts: Airflow 3.3 shows it
    as `scheduled`, and says why in its scheduler's log only. A task that waits in the triggerer for its container or
    pod keeps its slots only in a pool that counts deferred tasks; without a triggerer it waits on.
    """
    workers, quantizing = deployment.workers, deployment.quantization_host
    taken = [(workers.quantization.pool, quantizing.count if quantizing else 1)]
    taken += [(group.pool, 1) for group in workers.targets.values()]
    taken += [(workers.targets[t.name].pool, t.accelerator_count) for t in targets if t.name in workers.targets]
    needed: dict[str, int] = {}  # the most slots that one task takes
    for pool, slots in taken:
        if pool:
            needed[pool] = max(slots, needed.get(pool, 1))
    deferred = any(environment.is_deferrable() for environment in deployment.environments.values())
    try:
        there = airflow_pools() if needed else {}
        asleep = triggerer_problem() if deferred else ""
    except ConfigError as error:
        yield _told("Airflow", error.message, "warning", error.hint)
        return
    for pool, slots in needed.items():
        fix = f'airflow pools set {pool} <GPUs> "<host>" --include-deferred'
        (has, counts_deferred), trouble = there.get(pool, (0, False)), ""
        if pool not in there:
            trouble = "Airflow has no such pool: its tasks would never start"
        elif has != _UNLIMITED and has < slots:
            trouble = f"{has} slots, and one task takes {slots}: it would never start"
        elif deferred and not counts_deferred:
            trouble = "it does not count deferred tasks: GPUs would be given away while their containers or pods run"
        words = trouble or f"{has} slots, a task takes {slots} at most"
        yield _told(f"pool {pool}", words, "failed" if trouble else "ok", fix)
    if deferred:
        state: State = "failed" if asleep else "ok"
        yield _told("triggerer", asleep or "it runs", state, "start one: airflow triggerer")


def _gpus(targets: Sequence[Target]) -> Iterator[Check]:
    """The GPUs, and the targets that they are."""
    on_gpus = [target for target in targets if target.accelerator != "cpu"]
    try:
        here = read_host_facts()
    except Unsupported as error:
        yield _told("GPUs", error.message, "warning" if on_gpus else "ok")
        return
    except PipelineError as error:
        yield _told("GPUs", error.message, "failed", error.hint)
        return
    names = ", ".join(f"{gpu.name} ({gpu.sm}, {gpu.memory_bytes / 2**30:.0f} GiB)" for gpu in here.gpus)
    yield _told("GPUs", f"{names}; driver {here.driver}")
    for target in on_gpus:
        yield _looked(f"target {target.name}", _target, target, here)


def _target(target: Target, here: HostFacts) -> str:
    if problems := target_problems(target, here):
        raise _Doubt(f"not this host: {'; '.join(problems)}")
    if warning := driver_warning(target, here):
        raise _Doubt(warning, hint="update the driver, or use an older container")
    return "this host fits"


def triggerer_problem() -> str:
    """Why no task would be woken up; empty while a triggerer runs.

    Raises:
        ConfigError: Airflow cannot be asked here.
    """
    try:
        _airflow("triggerer", "jobs", "check", "--job-type", "TriggererJob", "--allow-multiple", "--limit", "100")
    except ConfigError as error:
        said = error.__cause__
        if isinstance(said, subprocess.CalledProcessError) and "No alive jobs found" in said.stderr + said.stdout:
            return "none runs: a task whose stage runs in a container or a pod would wait for its time limit"
        raise
    return ""


def airflow_pools() -> dict[str, tuple[int, bool]]:
    """How many slots each pool has (-1 for any number), and whether a deferred task keeps its own.

    Raises:
        ConfigError: There is no Airflow in this interpreter, no database of it that this host reaches, or its answer
            cannot be read.
    """
    said = _airflow("pools", "pools", "list", "--output", "json")
    try:
        rows = json.loads(said[said.index("[{") :])
        return {str(row["pool"]): (int(row["slots"]), str(row["include_deferred"]) == "True") for row in rows}
    except (ValueError, KeyError) as error:
        hint = "compare the pools yourself: airflow pools list"
        raise ConfigError(f"what Airflow says of its pools cannot be read: {error}", hint=hint) from error


def _airflow(subject: str, *arguments: str) -> str:
    """What Airflow's own command prints.

    Raises:
        ConfigError: It fails, or is not here.
    """
    command = [sys.executable, "-m", "airflow", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        hint = "run it where Airflow's scheduler runs, with its settings"
        raise ConfigError(f"Airflow cannot be asked for its {subject} here: {error}", hint=hint) from error
    return done.stdout
