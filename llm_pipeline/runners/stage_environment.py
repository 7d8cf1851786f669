"""The environment of a stage's process: what every process needs, and the secrets that this stage needs.

Nothing else of ours is handed on. What a stage needs follows from its declaration and its request:

| the request or the stage | variables |
|---|---|
| a configuration that names variables (`token_variable`, `api_key_variable`, ...) | those |
| a store, model or repository in S3, a load balancer or metrics of AWS | `AWS_*` |
| a place on a cluster, or a router that is one of its objects | `KUBECONFIG`, `KUBERNETES_*` |
| signing is on, and the stage publishes artifacts | the key's password, or the identity token |
| the deployment's `variables`, and those in its paths | those |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llm_pipeline.base.plain_environment import gpu_variables, is_plain
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.store import StoreModel
from llm_pipeline.release.contract import StageRequest
from llm_pipeline.release.execute import load_stage
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
    return _environment(_needed_by_stage(request, deployment)) | gpus


def command_environment(deployment: Deployment) -> dict[str, str]:
    """The whole environment of a command that acts on a deployment's servers and store, and publishes nothing."""
    document = deployment.model_dump(
        mode="json", exclude={"environments", "hub", "notifications", "store", "variables"}
    )
    return _environment(_needed([document], deployment.store, deployment, publishes=False))


def withheld_secrets(request: StageRequest, deployment: Deployment) -> frozenset[str]:
    """Variables with secrets, as far as the deployment names them, that a stage does not need.

    Containers and pods get what their environment lists, but for these.

    Raises:
        ConfigError: The stage is unknown, or a file that it reads is wrong.
    """
    needed = _needed_by_stage(request, deployment)
    known = named_secrets(deployment) | _AWS_SECRETS
    return frozenset(name for name in known if not needed(name))


def named_secrets(deployment: Deployment) -> frozenset[str]:
    """The variables that a deployment names for secrets, whoever needs them."""
    everything = deployment.model_dump(mode="json", exclude={"variables", "environments"})
    addresses = (channel.variable for channel in deployment.notifications.values())
    return frozenset({*_names_in(everything), *deployment.airflow_connections, *addresses})


def _needed_by_stage(request: StageRequest, deployment: Deployment) -> Callable[[str], bool]:
    stage = load_stage(request.stage)
    also = stage.reads(stage.config.model_validate(request.config)) if stage.reads else ()
    return _needed([request.config, *also], request.store, deployment, publishes=stage.publishes)


def _needed(
    documents: Sequence[Any], store: StoreModel, deployment: Deployment, *, publishes: bool
) -> Callable[[str], bool]:
    """Whether a variable is needed to work with documents that name places and variables, and with a store."""
    told = [*documents, store.model_dump(mode="json", exclude={"signing"})]
    names = {*deployment.variables, *deployment.path_variables, *_names_in(told)}
    if publishes and store.signing and store.signing.password_variable:
        names.add(store.signing.password_variable)
    entries = [(key, value) for key, value in _entries(told) if isinstance(value, str)]
    kinds = {value for key, value in entries if key == "kind"}
    prefixes: tuple[str, ...] = ()
    if any(value.startswith("s3://") for _, value in entries):
        prefixes += ("AWS_",)
    if kinds & _CLUSTER_KINDS:
        prefixes += ("KUBERNETES_", "KUBECONFIG")
    return lambda name: name in names or name.startswith(prefixes)


def _environment(needed: Callable[[str], bool]) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if needed(name) or is_plain(name)}
    return ours | STAGE_VARIABLES


def _names_in(document: Any) -> Iterator[str]:
    """The variables that a configuration names."""
    for key, value in _entries(document):
        if key in _NAMED_BY and isinstance(value, str):
            yield value
        elif key == "variables" and isinstance(value, list | tuple):
            yield from map(str, value)


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
