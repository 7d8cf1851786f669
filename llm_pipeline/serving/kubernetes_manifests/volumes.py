"""The volumes of a serving pod: the store, read-only, the server's view of the repository, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.kubernetes_serving import ServingManifestOptions
from llm_pipeline.config.store import StoreConfig

VIEW = "/srv/llm-pipeline/view"
REPOSITORY = f"{VIEW}/repository"
KEYS = "/etc/llm-pipeline-mpi"
HOST_KEYS = "/run/llm-pipeline-mpi"

_CACHE = "/srv/llm-pipeline/cache"
_READABLE_BY_GROUP = 0o440


@dataclass(frozen=True)
class Volume:
    """A volume, and where containers see it."""

    name: str
    source: dict[str, Any]
    path: str
    writable: bool = False

    @property
    def manifest(self) -> dict[str, Any]:
        """The pod's part."""
        return {"name": self.name, **self.source}

    @property
    def mount(self) -> dict[str, Any]:
        """The container's part."""
        return {"name": self.name, "mountPath": self.path, **({} if self.writable else {"readOnly": True})}


def store_of_pods(options: ServingManifestOptions) -> StoreConfig:
    """The store as pods open it: they read and verify, so they know no key that signs.

    Raises:
        ConfigError: No claim has the store.
    """
    store = options.store
    signing = store.signing and store.signing.model_copy(update={"private_key": None, "password_variable": None})
    if store.directory is None:
        return store.model_copy(update={"signing": signing, "cache": store.cache or _CACHE})
    if not any(store.directory.is_relative_to(claim.path) for claim in options.claims):
        raise ConfigError(f"pods do not reach the store {store.uri}", hint="name the claim that holds it under claims")
    return store.model_copy(update={"signing": signing})


def serving_volumes(options: ServingManifestOptions, shared_memory_gib: int) -> tuple[Volume, ...]:
    """Volumes of every pod: the links in the view lead into the store, at the same path in all containers."""
    store = store_of_pods(options)
    claims = [Volume(f"claim-{number}", _claim(claim.claim), claim.path) for number, claim in enumerate(options.claims)]
    cache = [Volume("cache", {"emptyDir": {}}, store.cache, writable=True)] if store.cache else []
    shared_memory = {"emptyDir": {"medium": "Memory", "sizeLimit": f"{shared_memory_gib}Gi"}}
    return (
        Volume("view", {"emptyDir": {}}, VIEW, writable=True),
        *claims,
        *cache,
        Volume("tmp", {"emptyDir": {}}, "/tmp", writable=True),  # noqa: S108 - the pod's own
        Volume("shared-memory", shared_memory, "/dev/shm", writable=True),  # noqa: S108
    )


def ssh_volumes(options: ServingManifestOptions) -> tuple[Volume, ...]:
    """Volumes of pods whose leader starts ranks on its workers. SSH takes keys that their own user cannot change."""
    items = [{"key": "ssh-privatekey", "path": "id"}, {"key": "ssh-publickey", "path": "authorized_keys"}]
    secret = {"secretName": options.ssh_secret, "defaultMode": _READABLE_BY_GROUP, "items": items}
    return (
        Volume("ssh-keys", {"secret": secret}, KEYS),
        Volume("ssh-host-key", {"emptyDir": {"medium": "Memory"}}, HOST_KEYS, writable=True),
    )


def mounts(volumes: Sequence[Volume]) -> list[dict[str, Any]]:
    """The mounts of a container that sees all of them."""
    return [volume.mount for volume in volumes]


def _claim(name: str) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": name, "readOnly": True}}
