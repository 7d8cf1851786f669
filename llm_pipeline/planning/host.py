"""Whether this machine has what a deployment needs: disk, interpreters, routers, ports, memory, directories.

What lies in directories is found by its path: the retention removes from below `work_root` what nobody uses, the store
lists all that is below it, and two deployments with one `state_root` take each other's servers for their own.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from llm_pipeline.base import detached
from llm_pipeline.base.adapters import adapter
from llm_pipeline.base.directory_listing import list_directory
from llm_pipeline.base.errors import ConfigError, PipelineError, refuse
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.slots import slot_state
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.release.contract import EnvironmentName
from llm_pipeline.release.loading import LoadedRelease
from llm_pipeline.serving.ports import require_free_port
from llm_pipeline.serving.triton_server import find_server
from llm_pipeline.store import ArtifactStore
from llm_pipeline.store.references import all_pointers

_REQUIRED: tuple[EnvironmentName, ...] = ("control", "model")


def total_memory_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def has_nvidia_gpu() -> bool:
    """Whether this machine has an NVIDIA driver with a device."""
    return Path("/dev/nvidiactl").exists()


def cpu_flags() -> frozenset[str]:
    """The instructions of this machine's processor, as Linux names them; empty where it does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, flags = line.partition(":")
            if name.strip() == "flags":
                return frozenset(flags.split())
    return frozenset()


def existing_parent(path: str | Path) -> Path:
    """A directory, or the nearest one above it that exists."""
    found = Path(path)
    while not found.exists():
        found = found.parent
    return found


def free_bytes(directory: Path) -> int:
    """Free disk space of a directory's file system."""
    return shutil.disk_usage(directory).free


def missing_interpreters(deployment: Deployment) -> tuple[str, ...]:
    """What is wrong with the interpreters that stages are started in, one line each."""
    found = []
    for name in _REQUIRED:
        environment = deployment.environments.get(name)
        if environment is None:
            found.append(f"environments has no {name}")
        elif (python := environment.interpreter_here()) and not os.access(python, os.X_OK):
            found.append(f"environments.{name}: there is no interpreter at {python}")
    return tuple(found)


def missing_routers(deployment: Deployment, places: Iterable[str]) -> tuple[str, ...]:
    """What is wrong with the routers that are started on this host, one line each, by their adapters' probes.

    Nothing is said where another interpreter than this one starts them: the canary runs in the environment `control`.
    """
    control, found = deployment.environments.get("control"), []
    if control is None or Path(control.interpreter_here() or "").parent != Path(sys.executable).parent:
        return ()
    for name in places:
        place = deployment.places[name]
        look = adapter("routers", place.router.kind).probe if place.router.ports_here() else None
        try:
            if look is not None:
                look(place.router)
        except PipelineError as error:
            found.append(f"places.{name}.router: {error.message} ({error.where}): {error.hint}")
    return tuple(found)


def require_routers(loaded: LoadedRelease) -> None:
    """Refuse a release on this host whose canary would find no router to start, an hour later.

    Raises:
        ConfigError: A router of its places cannot be started here.
    """
    refuse(missing_routers(loaded.deployment, loaded.places.values()), where=f"deployment {loaded.deployment.name}")


class CausalModels(NamedTuple):
    """What a version of Transformers makes causal language models of: the `model_type` of their config.json."""

    version: str
    model_types: frozenset[str]


_CAUSAL_MODELS = re.compile(r"^MODEL_FOR_CAUSAL_LM_MAPPING_NAMES\b.*?\n\)", re.MULTILINE | re.DOTALL)
_TYPE_OF_ENTRY = re.compile(r"""^ +\(?["']([a-z][\w.-]*)["'][,:]""", re.MULTILINE)


def installed_transformers(deployment: Deployment) -> str | None:
    """Version of Transformers beside the interpreter of the model environment; None where it is not on this host."""
    packages = _model_packages(deployment)
    installed = packages.glob("transformers-*.dist-info") if packages is not None else ()
    return next((path.name.removesuffix(".dist-info").partition("-")[2] for path in installed), None)


def causal_models(deployment: Deployment) -> CausalModels | None:
    """What the model environment can load; None where that is not on this host, or its table has another form.

    The table is read as text: to import Transformers takes seconds, and this process may not have it.
    """
    version, packages = installed_transformers(deployment), _model_packages(deployment)
    if version is None or packages is None:
        return None
    table = packages / "transformers" / "models" / "auto" / "modeling_auto.py"
    found = _CAUSAL_MODELS.search(table.read_text(encoding="utf-8")) if table.is_file() else None
    known = frozenset(_TYPE_OF_ENTRY.findall(found.group())) if found is not None else frozenset()
    return CausalModels(version, known) if "llama" in known else None


def _model_packages(deployment: Deployment) -> Path | None:
    environment = deployment.environments.get("model")
    python = environment.interpreter_here() if environment is not None else None
    if python is None:
        return None
    return next(Path(python).parent.parent.glob("lib/python*/site-packages"), None)


def busy_ports(deployment: Deployment, places: tuple[str, ...]) -> tuple[str, ...]:
    """Ports of these places that something else listens on, one line each; our own servers are fine."""
    found = []
    for name in places:
        place = deployment.places[name]
        ports: dict[str, tuple[int, ...]] = {
            server: tuple(its.by_name().values()) for server, its in place.servers_here().items()
        }
        ports["router"] = place.router.ports_here()
        for server, numbers in ports.items():
            records = list_directory(Path(deployment.state_root) / name / server)
            started = [detached.parsed(one.read_bytes()) for one in records if one.suffix == ".json"]
            if any(process is not None and process.alive for process in started):
                continue
            for port in numbers:
                try:
                    require_free_port(port, role="this", what="")
                except ConfigError as error:
                    found.append(f"places.{name}.{server}: {error.message}")
    return tuple(found)


class ForeignServer(ConfigError):
    """A server of another deployment runs at a place of this one."""


def check_directories(loaded: LoadedRelease) -> None:
    """Refuse directories that are, or lie in, one another; and one that holds the configs, with a project around them.

    Raises:
        ConfigError: Naming every such pair.
    """
    deployment = loaded.deployment
    named = {"work_root": Path(deployment.work_root), "state_root": Path(deployment.state_root)}
    if deployment.store.directory is not None:
        named = {"store": deployment.store.directory, **named}
    resolved = {name: Path(os.path.realpath(path)) for name, path in named.items()}
    configs = Path(os.path.realpath(loaded.configs_root))
    problems: list[str] = []
    around = [f"{name} {path} holds the configs" for name, path in resolved.items() if configs.is_relative_to(path)]
    for (first, one), (second, other) in combinations(resolved.items(), 2):
        if one == other:
            problems.append(f"{first} and {second} are both {one}")
        elif one.is_relative_to(other):
            problems.append(f"{first} {one} lies in {second} {other}")
        elif other.is_relative_to(one):
            problems.append(f"{second} {other} lies in {first} {one}")
    refuse(
        [*problems, *around],
        where=f"{loaded.path}: deployment {deployment.name}",
        hint="give each of them a directory of its own, beside the others",
    )


def refuse_foreign_servers(store: ArtifactStore, deployment: Deployment, place: str) -> None:
    """Refuse a place of which a slot holds a server that the store knows nothing of: a canary would stop it.

    Raises:
        ForeignServer: There is one.
        PipelineError: The store cannot be read, or a server's record.
    """
    for slot in deployment.places[place].slots:
        state = slot_state(Path(deployment.state_root), place, slot)
        server = find_server(state)
        if server is None or not server.digest:
            continue
        repository = ArtifactRef(kind="model_repository", digest=server.digest)
        # Production and the version before may serve on, though somebody removed what they were started from.
        pointed_at = {reference.pointer.repository for reference in all_pointers(store)}
        if not store.exists(repository) and repository not in pointed_at:
            raise ForeignServer(
                f"slot {slot} of place {place} serves {repository}, which is not in {store.uri}: another deployment, "
                "or this one with another store, runs it",
                where=str(state),
                hint="give this deployment a state_root and ports of its own, or stop that server where it belongs",
            )
