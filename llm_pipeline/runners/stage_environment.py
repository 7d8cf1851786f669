"""The environment of a stage's process: what every process needs, and the secrets that this stage needs.

Nothing else of ours is handed on. What a stage needs follows from its declaration and its request:

| the request or the stage | variables |
|---|---|
| a configuration that names variables (`token_variable`, `api_key_variable`, ...) | those |
| a store, model or repository in S3, a load balancer or metrics of AWS | `AWS_*` |
| a place on a cluster, or a router that is one of its objects | `KUBECONFIG`, `KUBERNETES_*` |
| a server in a container of this host | `DOCKER_*` |
| signing is on, and the stage publishes artifacts | the key's password, or the identity token |
| the deployment's `variables`, and those in its paths | those |
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from llm_pipeline.base.plain_environment import gpu_variables, is_plain
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.store import StoreModel
from llm_pipeline.release.contract import StageRequest
from llm_pipeline.release.registry import load_stage
from llm_pipeline.runners.runner import STAGE_VARIABLES

_NAMED_BY = frozenset({"token_variable", "password_variable", "api_key_variable"})
_CLUSTER_KINDS = frozenset({"kubernetes", "gateway_api"})
_AWS_SECRETS = frozenset({"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"})


def stage_environment(request: StageRequest, deployment: Deployment) -> dict[str, str]:
    """The whole environment of a stage's process on this host.

    Raises:
        ConfigError: The stage is unknown, or a file that it reads is wrong.
    """
    gpus = {} if request.gpu_indices is None else gpu_variables(request.gpu_indices)
    return _environment(_needed_by_stage(request, deployment)) | STAGE_VARIABLES | gpus


def command_environment(deployment: Deployment) -> dict[str, str]:
    """The whole environment of a command that acts on a deployment's servers and store, and publishes nothing."""
    document = deployment.model_dump(
        mode="json", exclude={"environments", "hub", "notifications", "store", "variables"}
    )
    needed = _Needed.of([document], deployment.store, publishes=False).joined(_given(deployment))
    return _environment(needed) | STAGE_VARIABLES


def withheld_secrets(request: StageRequest, deployment: Deployment) -> frozenset[str]:
    """Variables with secrets, as far as the deployment names them, that a stage does not need.

    Containers and pods get what their environment lists, but for these.

    Raises:
        ConfigError: The stage is unknown, or a file that it reads is wrong.
    """
    needed = _needed_by_stage(request, deployment)
    known = named_secrets(deployment) | _AWS_SECRETS
    return frozenset(name for name in known if not needed.has(name))


def named_secrets(deployment: Deployment) -> frozenset[str]:
    """The variables that a deployment names for secrets, whoever needs them."""
    everything = deployment.model_dump(mode="json", exclude={"variables", "environments"})
    addresses = (channel.variable for channel in deployment.notifications.values())
    return frozenset({*_names_in(everything), *deployment.airflow_connections, *addresses})


class _Needed:
    """Names and prefixes of variables."""

    def __init__(self, names: Iterable[str], prefixes: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._prefixes = tuple(prefixes)

    @classmethod
    def of(cls, documents: Iterable[Any], store: StoreModel, *, publishes: bool) -> _Needed:
        """What is needed to work with documents that name places and variables, and with a store."""
        documents = list(documents)
        kinds = {kind for document in documents for kind in _kinds_in(document)}
        names = {name for document in documents for name in _names_in(document)}
        if publishes and store.signing and store.signing.password_variable:
            names.add(store.signing.password_variable)
        prefixes = []
        names |= {*_names_in(store.model_dump(mode="json", exclude={"signing"}))}
        if store.kind == "s3" or any(_mentions_s3(document) for document in documents):
            prefixes.append("AWS_")
        if kinds & _CLUSTER_KINDS:
            prefixes += ["KUBERNETES_", "KUBECONFIG"]
        if "docker" in kinds:
            prefixes.append("DOCKER_")
        return cls(names, prefixes)

    def joined(self, names: Iterable[str]) -> _Needed:
        """These, and more names."""
        return _Needed({*self._names, *names}, self._prefixes)

    def has(self, name: str) -> bool:
        """Whether a variable is needed."""
        return name in self._names or name.startswith(self._prefixes)


def _needed_by_stage(request: StageRequest, deployment: Deployment) -> _Needed:
    stage = load_stage(request.stage)
    also = stage.reads(stage.config.model_validate(request.config)) if stage.reads else ()
    documents = [request.config, *also]
    return _Needed.of(documents, request.store, publishes=stage.publishes).joined(_given(deployment))


def _given(deployment: Deployment) -> Iterator[str]:
    yield from deployment.variables
    yield from deployment.path_variables


def _environment(needed: _Needed) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if needed.has(name) or is_plain(name)}


def _names_in(document: Any) -> Iterator[str]:
    """The variables that a configuration names."""
    for key, value in _entries(document):
        if key in _NAMED_BY and isinstance(value, str):
            yield value
        elif key == "variables" and isinstance(value, list | tuple):
            yield from map(str, value)


def _kinds_in(document: Any) -> Iterator[str]:
    return (value for key, value in _entries(document) if key == "kind" and isinstance(value, str))


def _mentions_s3(document: Any) -> bool:
    return any(isinstance(value, str) and value.startswith("s3://") for _, value in _entries(document))


def _entries(document: Any) -> Iterator[tuple[str, Any]]:
    """Every key and its value, at any depth; an item of a list has no key."""
    if isinstance(document, Mapping):
        items = [(str(key), value) for key, value in document.items()]
    elif isinstance(document, list | tuple):
        items = [("", value) for value in document]
    else:
        return
    for key, value in items:
        yield key, value
        yield from _entries(value)
