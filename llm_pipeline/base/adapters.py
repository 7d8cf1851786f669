"""Adapters by group and kind: ours by name, those of other packages by their entry points.

    [project.entry-points."llm_pipeline.metric_sources"]
    statsd = "acme_statsd.source:ADAPTER"

An adapter is imported when its kind is used, and not earlier. Ours stand in a table: they are found in a checkout or
an image without installed metadata, too, and reading the metadata of all packages takes a tenth of a second.

| group | kind in the configuration | port |
|---|---|---|
| `engines` | `engine` of a target | `llm_pipeline.engines.builder` |
| `routers` | `kind` of a place's `router` | `llm_pipeline.canary.router` |
| `metric_sources` | `kind` of a place's `metrics` | `llm_pipeline.canary.metrics` |
| `server_controls` | `kind` of a place's `staging` | `llm_pipeline.serving.control` |
| `runners` | `runner` of an environment | `llm_pipeline.runners.runner` |
| `stores` | scheme of the store's URI | `llm_pipeline.store.artifact_store` |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from llm_pipeline.base.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import BaseModel

Group = Literal["engines", "routers", "metric_sources", "server_controls", "runners", "stores"]


@dataclass(frozen=True)
class Adapter:
    """What an entry point names; some groups ask for more, and have a class of their own below this one.

    Attributes:
        config: The model of its settings, which derives from the group's own (`RouterModel`, `EnvironmentModel`, ...).
            Its `problems` and `warnings` are what `plan` says of them.
        open: Makes what the group's port describes, from those settings and what the port says besides.
        probe: Looks at what the settings name, and returns what `doctor` says of it; it raises a `PipelineError` where
            that does not work. None where there is nothing to look at.
    """

    config: type[BaseModel]
    open: Callable[..., Any]
    probe: Callable[..., str] | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class OnCall:
    """A function that is imported when it is first called: settings are read where what they open is not installed.

    Attributes:
        name: `package.module:attribute`, as entry points name it.
    """

    name: str

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.imported()(*arguments, **named)

    def imported(self) -> Any:
        """The function itself; raises ImportError or AttributeError where there is none."""
        return _imported(self.name)


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return attrgetter(attribute)(import_module(module))


_OURS: Mapping[Group, Mapping[str, str]] = {
    "engines": {
        "openvino_cpu": "llm_pipeline.adapters.openvino.adapter:ADAPTER",
        "tensorrt_llm_llmapi": "llm_pipeline.adapters.tensorrt_llm.adapter:LLM_API",
        "tensorrt_llm_engine": "llm_pipeline.adapters.tensorrt_llm.adapter:COMPILED",
        "vllm": "llm_pipeline.adapters.vllm.adapter:ADAPTER",
    },
    "routers": {
        "envoy": "llm_pipeline.adapters.envoy.adapter:ADAPTER",
        "gateway_api": "llm_pipeline.adapters.gateway_api.adapter:ADAPTER",
    },
    "metric_sources": {"prometheus": "llm_pipeline.adapters.prometheus.adapter:ADAPTER"},
    "server_controls": {
        "local": "llm_pipeline.adapters.local.adapter:SERVER",
        "kubernetes": "llm_pipeline.adapters.kubernetes.adapter:SERVER",
        "openai": "llm_pipeline.adapters.openai.adapter:ADAPTER",
    },
    "runners": {
        "process": "llm_pipeline.adapters.local.adapter:RUNNER",
        "docker": "llm_pipeline.adapters.local.adapter:CONTAINERS",
        "podman": "llm_pipeline.adapters.local.adapter:CONTAINERS",
        "kubernetes": "llm_pipeline.adapters.kubernetes.adapter:RUNNER",
    },
    "stores": {
        "file": "llm_pipeline.adapters.local.directory:ADAPTER",
        "s3": "llm_pipeline.adapters.s3.adapter:ADAPTER",
    },
}


def our_kinds(group: Group) -> tuple[str, ...]:
    """The kinds that this package has adapters of."""
    return tuple(_OURS[group])


def is_ours(group: Group, kind: str) -> bool:
    """Whether this package has an adapter of that kind."""
    return kind in _OURS[group]


def adapter(group: Group, kind: str) -> Any:
    """The adapter of a kind, imported.

    Raises:
        ConfigError: No installed package has one, two have one, or it cannot be imported.
    """
    if name := _OURS[group].get(kind):
        return _imported(name)
    where = f"entry points llm_pipeline.{group}"
    found = [one for one in _installed(group) if one.name == kind]
    if not found:
        hint = f"kinds are: {', '.join(kinds(group))}; packages add theirs by {where}"
        problem = f"no {group.replace('_', ' ').removesuffix('s')} of kind {kind!r} is installed"
        raise ConfigError(problem, where=where, hint=hint)
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
