"""Whether the directories that a deployment names can be directories, and each its own.

What lies in them is found by its path: the retention removes from below `work_root` what nobody uses, the store lists
all that is below it, and two deployments with one `state_root` take each other's servers for their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.slots import slot_servers, slot_state
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.release.loading import LoadedRelease
from llm_pipeline.serving.triton_server import find_server
from llm_pipeline.store import ArtifactStore
from llm_pipeline.store.references import placed_pointers

UNBLOCK = "move it away, or name other places in the deployment file"
"""What to do about a directory that something is in the way of."""


class ForeignServer(ConfigError):
    """A server of another deployment runs at a place of this one."""


def check_directories(loaded: LoadedRelease) -> None:
    """Refuse directories that are, or lie in, one another; and one that holds the configs, with a project around them.

    Raises:
        ConfigError: Naming every such pair.
    """
    resolved = {name: Path(os.path.realpath(path)) for name, path in _directories(loaded.deployment).items()}
    configs = Path(os.path.realpath(loaded.configs_root))
    around = [f"{name} {path} holds the configs" for name, path in resolved.items() if configs.is_relative_to(path)]
    if problems := (*_overlaps(resolved), *around):
        raise ConfigError(
            "\n".join(problems),
            where=f"{loaded.path}: deployment {loaded.deployment.name}",
            hint="give each of them a directory of its own, beside the others",
        )


def blocked_directories(deployment: Deployment) -> tuple[str, ...]:
    """The directories that cannot be made on this machine, and what is in their way."""
    found = []
    for name, path in _directories(deployment).items():
        if obstacle := _obstacle(path):
            found.append(f"{name} {path} cannot be a directory: {obstacle}")
    return tuple(found)


def require_directories(loaded: LoadedRelease) -> None:
    """What a run on this machine needs of the directories, before it writes a byte.

    Raises:
        ConfigError: They clash, or cannot be made.
    """
    check_directories(loaded)
    if problems := blocked_directories(loaded.deployment):
        where = f"{loaded.path}: deployment {loaded.deployment.name}"
        raise ConfigError("\n".join(problems), where=where, hint=UNBLOCK)


def refuse_foreign_servers(store: ArtifactStore, deployment: Deployment, place: str) -> None:
    """Refuse a place of which a slot holds a server that the store knows nothing of: a canary would stop it.

    Raises:
        ForeignServer: There is one.
        PipelineError: The store cannot be read, or a server's record.
    """
    for slot in slot_servers(deployment.places[place]):
        state = slot_state(Path(deployment.state_root), place, slot)
        server = find_server(state)
        if server is None or not server.digest:
            continue
        repository = ArtifactRef(kind="model_repository", digest=server.digest)
        if not store.exists(repository) and repository not in _pointed_at(store):
            raise ForeignServer(
                f"slot {slot} of place {place} serves {repository}, which is not in {store.uri}: another deployment, "
                "or this one with another store, runs it",
                where=str(state),
                hint="give this deployment a state_root and ports of its own, or stop that server where it belongs",
            )


def _directories(deployment: Deployment) -> Mapping[str, Path]:
    named = {"work_root": Path(deployment.work_root), "state_root": Path(deployment.state_root)}
    return named if deployment.store.directory is None else {"store": deployment.store.directory, **named}


def _overlaps(named: Mapping[str, Path]) -> Iterator[str]:
    for (first, one), (second, other) in combinations(named.items(), 2):
        if one == other:
            yield f"{first} and {second} are both {one}"
        elif one.is_relative_to(other):
            yield f"{first} {one} lies in {second} {other}"
        elif other.is_relative_to(one):
            yield f"{second} {other} lies in {first} {one}"


def _obstacle(path: Path) -> str:
    """What is in a directory's way; empty where it is there or can be made. Who may make it is not asked."""
    nearest = next(one for one in (path, *path.parents) if os.path.lexists(one))
    if nearest.is_dir():
        return ""
    if nearest.is_symlink() and not nearest.exists():
        return f"the link {nearest} leads nowhere"
    return f"{nearest} is a file"


def _pointed_at(store: ArtifactStore) -> set[ArtifactRef]:
    """Production's and the version before may serve on, though somebody removed what they were started from."""
    references = (reference for placed in placed_pointers(store) for reference in placed.references())
    return {reference.pointer.repository for reference in references}
