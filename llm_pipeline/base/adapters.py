"""Adapters by group and kind: ours by name, those of other packages by their entry points.

    [project.entry-points."llm_pipeline.metric_sources"]
    statsd = "acme_statsd.source:ADAPTER"

An adapter is imported when its kind is used, and not earlier. Ours stand in a table: they are found in a checkout or
an image without installed metadata, too, and reading the metadata of all packages takes a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from llm_pipeline.base.errors import ConfigError

Group = Literal["engines", "routers", "metric_sources", "server_controls", "runners"]

_OURS: Mapping[Group, Mapping[str, str]] = {
    "engines": {
        "openvino_cpu": "llm_pipeline.adapters.openvino.builder:OpenVinoCpuBuilder",
        "tensorrt_llm_llmapi": "llm_pipeline.adapters.tensorrt_llm.llmapi_builder:TensorRtLlmLlmApiBuilder",
        "tensorrt_llm_engine": "llm_pipeline.adapters.tensorrt_llm.engine_builder:TensorRtLlmEngineBuilder",
        "transformers_torch": "llm_pipeline.adapters.transformers.builder:TransformersTorchBuilder",
        "vllm": "llm_pipeline.adapters.vllm.builder:VllmBuilder",
    },
    "routers": {
        "envoy": "llm_pipeline.adapters.envoy.adapter:STARTED",
        "existing_envoy": "llm_pipeline.adapters.envoy.adapter:EXISTING",
        "gateway_api": "llm_pipeline.adapters.gateway_api.router:ADAPTER",
        "istio": "llm_pipeline.adapters.istio.router:ADAPTER",
        "aws_alb": "llm_pipeline.adapters.aws.alb:ADAPTER",
    },
    "metric_sources": {
        "envoy": "llm_pipeline.adapters.envoy.statistics:ADAPTER",
        "prometheus": "llm_pipeline.adapters.prometheus.source:ADAPTER",
        "cloudwatch": "llm_pipeline.adapters.aws.cloudwatch:ADAPTER",
    },
    "server_controls": {
        "local": "llm_pipeline.serving.control.local:LocalControl",
        "existing": "llm_pipeline.serving.control.existing:ExistingControl",
        "docker": "llm_pipeline.adapters.docker.server:DockerControl",
        "kubernetes": "llm_pipeline.adapters.kubernetes.server:KubernetesControl",
    },
    "runners": {
        "process": "llm_pipeline.runners.process:ProcessRunner",
        "docker": "llm_pipeline.adapters.docker.runner:DockerRunner",
        "kubernetes": "llm_pipeline.adapters.kubernetes.runner:KubernetesRunner",
    },
}


def is_ours(group: Group, kind: str) -> bool:
    """Whether this package has an adapter of that kind."""
    return kind in _OURS[group]


def adapter(group: Group, kind: str) -> Any:
    """The adapter of a kind, imported.

    Raises:
        ConfigError: No installed package has one, two have one, or it cannot be imported.
    """
    if name := _OURS[group].get(kind):
        module, _, attribute = name.partition(":")
        return getattr(import_module(module), attribute)
    where = f"entry points llm_pipeline.{group}"
    found = [one for one in _installed(group) if one.name == kind]
    if not found:
        raise ConfigError(f"no {group.replace('_', ' ')[:-1]} of kind {kind!r} is installed", where=where,
                          hint=f"kinds are: {', '.join(kinds(group))}")  # fmt: skip
    if len({one.value for one in found}) > 1:
        raise ConfigError(f"two packages have a kind {kind!r}", where=where, hint="uninstall one of them")
    try:
        return found[0].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{found[0].value} cannot be imported: {error}", where=where) from error


def kinds(group: Group) -> tuple[str, ...]:
    """Every kind that there is an adapter of."""
    return tuple(dict.fromkeys([*_OURS[group], *(one.name for one in _installed(group))]))


@cache
def _installed(group: Group) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=f"llm_pipeline.{group}"))
