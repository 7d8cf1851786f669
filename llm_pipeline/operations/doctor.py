"""What this host has of what a deployment asks for, looked at by doing: `llm-pipeline doctor`.

`plan` judges a release from its files alone. This starts interpreters, writes to the store, asks the GPU driver: run it
on each host that stages or servers run on.
"""

from __future__ import annotations

import os
import platform
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from llm_pipeline.artifacts.host_facts import HostFacts, read_host_facts
from llm_pipeline.artifacts.host_match import driver_warning, target_problems
from llm_pipeline.base.adapters import Adapter, Group, adapter
from llm_pipeline.base.errors import ConfigError, PipelineError, Unsupported
from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.openai_slots import openai_servers
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.target import Target
from llm_pipeline.engines.builder import engine_adapter, own_server_of
from llm_pipeline.notifications.telling import check_channel
from llm_pipeline.operations import airflow_pools as airflow
from llm_pipeline.operations.served_place import is_recent, last_heard, last_pass
from llm_pipeline.operations.status import Health, deployment_status
from llm_pipeline.planning import host
from llm_pipeline.runners.stage_environment import named_secrets, secret_connections
from llm_pipeline.serving.endpoint_access import require_model
from llm_pipeline.serving.repository_links import refuse_other_host
from llm_pipeline.serving.triton_runtime import inspect_interpreter, open_home
from llm_pipeline.store import open_store
from llm_pipeline.store.place_state import read_place


@dataclass(frozen=True)
class SecretSource:
    """One secret.

    Attributes:
        variable: The environment variable that hands it on.
        words: Where it comes from.
        twice: It comes from two places: what Airflow runs refuses that.
    """

    variable: str
    words: str
    twice: bool = False


def secret_sources(deployment: Deployment) -> Iterator[SecretSource]:
    """The secrets of a deployment, by their variables' names."""
    connections = secret_connections(deployment)
    for variable in sorted(named_secrets(deployment)):
        here, connection = bool(os.environ.get(variable)), connections.get(variable)
        if here and connection:
            yield SecretSource(variable, f"the environment, and Airflow's connection {connection}", twice=True)
        elif connection:
            yield SecretSource(variable, f"Airflow's connection {connection}, for what Airflow runs")
        else:
            yield SecretSource(variable, "the environment" if here else "not set")


State = Literal["ok", "warning", "failed"]
_START_SECONDS = 60
_FIND_MODULES = (
    "import sys; from importlib.util import find_spec; print(*[name for name in sys.argv[1:] if not find_spec(name)])"
)
_VERSION = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
_LITTLE_DISK = 20e9


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


def examine(
    deployment: Deployment,
    targets: Sequence[Target] = (),
    model_id: str = "",
    task_modules: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> tuple[Check, ...]:
    """Look at everything.

    Args:
        deployment: What should be there.
        targets: Targets that this host may be meant for; a GPU host should be one of them.
        model_id: The model whose engines in production must fit this host, where it is their target's.
        task_modules: Python modules that evaluation tasks need, by task.
    """
    return (
        Check(
            subject="deployment", state="ok", detail=f"{deployment.name}: {', '.join(deployment.places) or 'no place'}"
        ),
        *_adapters(deployment, targets),
        *_runtimes(deployment, targets),
        *_task_modules(deployment, task_modules),
        _attempt("store", lambda: _store(deployment)),
        *_directories(deployment),
        _attempt("triton", lambda: _triton(deployment)),
        *_secrets(deployment),
        *(Check(subject="credentials", state="warning", detail=line) for line in _credentials(deployment)),
        *_ports(deployment),
        *_airflow(deployment, targets),
        *_places(deployment),
        *_slots(deployment),
        *_users_ports(deployment),
        *_production(deployment),
        *_guards(deployment),
        *_gpus(targets),
        *_engines(deployment, targets, model_id),
    )


def _attempt(subject: str, look: Callable[[], str], *, otherwise: State = "failed") -> Check:
    try:
        return Check(subject=subject, state="ok", detail=look())
    except PipelineError as error:
        where = f"{error.where}: " if error.where else ""
        return Check(subject=subject, state=otherwise, detail=f"{where}{error.message}", fix=error.hint)


def _adapters(deployment: Deployment, targets: Sequence[Target]) -> Iterator[Check]:
    """What the adapters of all that the deployment names say of it, as far as they look at anything."""
    for subject, group, kind, *settings in _named(deployment, targets):
        found: Adapter = adapter(group, kind)
        if found.probe is not None:
            yield _attempt(subject, partial(found.probe, *settings))
    for name, channel in deployment.notifications.items():
        yield _attempt(f"notifications by {name}", partial(check_channel, channel), otherwise="warning")


def _slots(deployment: Deployment) -> Iterator[Check]:
    """Servers that somebody else starts; the one that is not in production need not run yet."""
    for name, place in deployment.places.items():
        for slot, server in openai_servers(place).items():
            yield _attempt(f"{slot} of {name}", partial(_has_model, server.endpoint), otherwise="warning")


def _has_model(endpoint: Endpoint) -> str:
    require_model(endpoint)
    return f"{endpoint.url} has the model {endpoint.openai_model}"


def _named(deployment: Deployment, targets: Sequence[Target]) -> Iterator[tuple[str, Group, str, *tuple[Any, ...]]]:
    """Subject, group, kind and settings of whatever an adapter opens."""
    for name, environment in deployment.environments.items():
        yield f"environment {name}", "runners", environment.runner, environment
    yield "store's address", "stores", deployment.store.kind, deployment.store
    for name, place in deployment.places.items():
        yield f"staging of {name}", "server_controls", place.staging.kind, place.staging
        yield f"router of {name}", "routers", place.router.kind, place.router
        if place.metrics is not None:
            yield f"metrics of {name}", "metric_sources", place.metrics.kind, place.metrics, place.router
    for target in targets:
        yield f"engine of {target.name}", "engines", target.engine, target.engine_options


def _runtimes(deployment: Deployment, targets: Sequence[Target]) -> Iterator[Check]:
    """Engines that are Python packages: their versions where the servers of this host run the models' code.

    A warning at most: a target's servers may be on another host than this one.
    """
    for target in targets:
        engine, place = engine_adapter(target.engine), deployment.places.get(target.name)
        if engine.beside_triton and place is not None and place.servers_here():
            look = partial(_runtime, deployment, place.environment, engine.runtime)
            yield _attempt(f"runtime of {target.name}", look, otherwise="warning")
        if (own := own_server_of(target)) and place is not None:
            look = partial(_command, deployment, place.environment, own.program)
            yield _attempt(f"server of {target.name}", look, otherwise="warning")


def _command(deployment: Deployment, environment: str, program: str) -> str:
    found = Path(deployment.interpreter(environment)).parent / program
    if not found.exists():
        hint = "install it there, or set server: triton in the target"
        raise Unsupported(f"there is no command {found}", where=f"environment {environment}", hint=hint)
    return str(found)


def _runtime(deployment: Deployment, environment: str, distribution: str) -> str:
    python = deployment.interpreter(environment)
    try:
        found = subprocess.run(
            [python, "-c", _VERSION, distribution],
            cwd="/", capture_output=True, text=True, timeout=_START_SECONDS, check=True,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        hint = "install it there: the models' code in Triton imports it"
        raise Unsupported(f"{python} has no {distribution}", where=f"environment {environment}", hint=hint) from error
    except (OSError, subprocess.SubprocessError) as error:
        raise Unsupported(f"{python} does not start: {error}", where=f"environment {environment}") from error
    return f"{distribution} {found.stdout.strip()} in environment {environment}"


def _task_modules(deployment: Deployment, needed: Mapping[str, Sequence[str]]) -> Iterator[Check]:
    """Whether evaluation tasks find what they import, where that is an interpreter of this host."""
    environment = deployment.environments.get("model")
    python = environment.interpreter_here() if environment is not None else None
    for task, modules in needed.items():
        subject = f"task {task}"
        if python is None:
            detail = f"needs {', '.join(modules)} in the image that models are evaluated in: not looked at"
            yield Check(subject=subject, state="warning", detail=detail)
            continue
        try:
            found = subprocess.run(
                [python, "-c", _FIND_MODULES, *modules],
                cwd="/", capture_output=True, text=True, timeout=_START_SECONDS, check=True,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            yield Check(subject=subject, state="failed", detail=f"{python} does not start: {error}")
            continue
        missing = found.stdout.split()
        yield Check(
            subject=subject,
            state="failed" if missing else "ok",
            detail=f"{python} lacks {', '.join(missing)}" if missing else f"has {', '.join(modules)}",
            fix="install their packages there, or leave the task out" if missing else "",
        )


def _store(deployment: Deployment) -> str:
    """Write, read and remove a document."""
    store, name = open_store(deployment.store), f"doctor/{uuid.uuid4().hex}.json"
    store.write_document(name, {"host": platform.node()}, None)
    store.delete_document(name)
    return f"{store.uri}: written and removed"


def _directories(deployment: Deployment) -> Iterator[Check]:
    for key in ("work_root", "state_root"):
        path = Path(getattr(deployment, key))
        parent = host.existing_parent(path)
        free = host.free_bytes(parent)
        detail = f"{path}, {free / 1e9:.0f} GB free"
        if not os.access(parent, os.W_OK):
            yield Check(subject=key, state="failed", detail=f"{parent} is not writable", fix="change its owner")
        elif free < _LITTLE_DISK:
            yield Check(subject=key, state="warning", detail=detail, fix="`plan` says what a release needs")
        else:
            yield Check(subject=key, state="ok", detail=detail)


def _triton(deployment: Deployment) -> str:
    home = open_home(Path(deployment.triton_home))
    environments = sorted({place.environment for place in deployment.places.values()}) or ["model"]
    pythons = (inspect_interpreter(Path(deployment.interpreter(name)), home).version for name in environments)
    versions = ", ".join(f"{version} ({name})" for name, version in zip(environments, pythons, strict=True))
    return f"{home.program}, for its models Python {versions}"


def _secrets(deployment: Deployment) -> Iterator[Check]:
    for source in secret_sources(deployment):
        state: State = "failed" if source.twice else "ok"
        fix = "keep one of them: what Airflow runs refuses both" if source.twice else ""
        yield Check(subject=f"secret {source.variable}", state=state, detail=source.words, fix=fix)


def _credentials(deployment: Deployment) -> tuple[str, ...]:
    missing = (*host.missing_credentials(deployment, "hub"), *host.missing_signing_keys(deployment))
    given = tuple(f"{variable} " for variable in secret_connections(deployment))
    return tuple(line for line in missing if not line.startswith(given))


def _ports(deployment: Deployment) -> Iterator[Check]:
    busy = host.busy_ports(deployment, tuple(deployment.places))
    for line in busy:
        yield Check(subject="ports", state="failed", detail=line, fix="stop what listens there, or name other ports")
    if not busy:
        yield Check(subject="ports", state="ok", detail="free, or those of our own servers")


def _airflow(deployment: Deployment, targets: Sequence[Target]) -> Iterator[Check]:
    """What Airflow must have; it is asked for nothing that the deployment does not need."""
    needed, deferred = airflow.slots_needed(deployment, targets), airflow.has_deferrable(deployment)
    try:
        there = airflow.airflow_pools() if needed else {}
        asleep = airflow.triggerer_problem() if deferred else ""
    except ConfigError as error:
        yield Check(subject="Airflow", state="warning", detail=error.message, fix=error.hint)
        return
    counted = airflow.counted_gpus(deployment)
    for pool, slots in needed.items():
        said, fix = counted.get(pool, set()), f'airflow pools set {pool} <GPUs> "<host>" --include-deferred'
        if problem := airflow.pool_problem(pool, slots, there, deferred=deferred):
            yield Check(subject=f"pool {pool}", state="failed", detail=problem, fix=fix)
        elif said - {there[pool].slots}:
            detail = f"{there[pool].slots} slots, and the deployment counts {' and '.join(map(str, sorted(said)))} GPUs"
            fix = f"make `gpus` under `workers` and the pool agree: {fix}"
            yield Check(subject=f"pool {pool}", state="failed", detail=detail, fix=fix)
        else:
            detail = f"{there[pool].slots} slots, a task takes {slots} at most"
            yield Check(subject=f"pool {pool}", state="ok", detail=detail)
    if asleep:
        yield Check(subject="triggerer", state="failed", detail=asleep, fix="start one: airflow triggerer")
    elif deferred:
        yield Check(subject="triggerer", state="ok", detail="it runs")


def _users_ports(deployment: Deployment) -> Iterator[Check]:
    """What users can do at the routers that are not ours to close."""
    for name, place in deployment.places.items():
        if left := place.router.left_to_its_operator:
            detail = f"its {place.router.kind} router has to refuse users {left}"
            fix = "look at its rules: whoever reaches Triton's model control unloads models for everybody"
            yield Check(subject=f"users' port of {name}", state="warning", detail=detail, fix=fix)


def _places(deployment: Deployment) -> Iterator[Check]:
    """Which model holds each place."""
    try:
        store = open_store(deployment.store)
    except PipelineError:
        return  # said of the store
    for name in deployment.places:
        subject = f"place {name}"
        try:
            found = read_place(store, name)
        except PipelineError as error:
            yield Check(subject=subject, state="failed", detail=str(error), fix=error.hint)
            continue
        yield Check(subject=subject, state="ok", detail=str(found))


def _production(deployment: Deployment) -> Iterator[Check]:
    """Whether pointers, router and servers of this host say the same of what users get, and users are answered."""
    try:
        found = deployment_status(open_store(deployment.store), deployment)
    except PipelineError:
        return  # said of the store
    for place in found.places:
        subject = f"production {place.place}"
        if place.production is None or place.health is Health.ELSEWHERE:
            continue
        if place.health is Health.STOPPED:
            yield Check(
                subject=subject, state="warning", detail=place.headline, fix=f"llm-pipeline start {place.place}"
            )
        fix = "`llm-pipeline guard` finishes what was begun; or release the model again that should serve"
        for problem in place.problems:
            yield Check(subject=subject, state="failed", detail=problem, fix=fix)
        if place.health is Health.HEALTHY:
            detail = f"users get {place.production.release_id} of {place.model_id}, as the pointers say"
            yield Check(subject=subject, state="ok", detail=detail)


def _guards(deployment: Deployment) -> Iterator[Check]:
    """Whether a guard runs that rolls back canaries without a controller."""
    if deployment.guard.schedule is None:
        return
    try:
        store = open_store(deployment.store)
        heard = {place: last_heard(store, place) for place in deployment.places}
    except PipelineError:
        return  # said of the store
    alone = {place: seconds for place, seconds in heard.items() if not is_recent(seconds)}
    if alone:
        detail = "; ".join(f"the guard of {place} {last_pass(seconds)}" for place, seconds in alone.items())
        fix = f"unpause the DAG guard__{deployment.name}, or run `llm-pipeline guard` every minute by other means"
        yield Check(subject="guard", state="warning", detail=detail, fix=fix)
    elif deployment.places:
        yield Check(subject="guard", state="ok", detail=f"looks at {', '.join(deployment.places)}")


def _gpus(targets: Sequence[Target]) -> Iterator[Check]:
    on_gpus = [target for target in targets if target.accelerator != "cpu"]
    try:
        here = read_host_facts()
    except Unsupported as error:
        state: State = "warning" if on_gpus else "ok"
        yield Check(subject="GPUs", state=state, detail=error.message)
        return
    except PipelineError as error:
        yield Check(subject="GPUs", state="failed", detail=error.message, fix=error.hint)
        return
    names = ", ".join(f"{gpu.name} ({gpu.sm}, {gpu.memory_bytes / 2**30:.0f} GiB)" for gpu in here.gpus)
    yield Check(subject="GPUs", state="ok", detail=f"{names}; driver {here.driver}")
    for target in on_gpus:
        yield _target(target, here)


def _engines(deployment: Deployment, targets: Sequence[Target], model_id: str) -> Iterator[Check]:
    """Engines in production, on a host that is their target's: a driver or a GPU may have changed since the build."""
    on_gpus = [target for target in targets if target.accelerator != "cpu"]
    try:
        own = [target for target in on_gpus if not target_problems(target, read_host_facts())]
    except PipelineError:
        return  # said of the GPUs
    for target in own:
        yield _attempt(f"engine {target.name}", partial(_engine, deployment, target, model_id))


def _engine(deployment: Deployment, target: Target, model_id: str) -> str:
    store = open_store(deployment.store)
    production = read_place(store, target.name).of(model_id).production
    if production is None:
        return "none is in production"
    refuse_other_host(store.fetch(production.repository))
    return f"{production.release_id} can be loaded here"


def _target(target: Target, here: HostFacts) -> Check:
    subject = f"target {target.name}"
    if problems := target_problems(target, here):
        return Check(subject=subject, state="warning", detail=f"not this host: {'; '.join(problems)}")
    if warning := driver_warning(target, here):
        return Check(
            subject=subject, state="warning", detail=warning, fix="update the driver, or use an older container"
        )
    return Check(subject=subject, state="ok", detail="this host fits")
