"""What adapters say of the settings that a release would use, before anything is spent.

Routers and metric sources are asked in `release_checks`, as they are judged together, and engines in `compatibility`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.release.loading import LoadedRelease


def check_adapters(loaded: LoadedRelease) -> None:
    """Refuse settings of the deployment that an adapter cannot work with.

    Raises:
        ConfigError: Naming every one.
    """
    if problems := [f"{name}: {problem}" for name, problems, _ in _asked(loaded) for problem in problems]:
        raise ConfigError(
            "\n".join(problems),
            where=f"{loaded.path}: deployment {loaded.deployment.name}",
            hint="correct them in the deployment file",
        )


def adapter_warnings(loaded: LoadedRelease) -> Iterator[str]:
    """What adapters have to say besides."""
    yield from (f"{name}: {warning}" for name, _, warnings in _asked(loaded) for warning in warnings)


def _asked(loaded: LoadedRelease) -> Iterator[tuple[str, Iterable[str], Iterable[str]]]:
    """Where each of the settings stands, its problems and its warnings."""
    deployment, canary = loaded.deployment, loaded.release.policy.canary
    yield "store", deployment.store.problems(), deployment.store.warnings()
    for name in sorted({"control", "model", *(target.environment for target in loaded.release.targets)}):
        if environment := deployment.environments.get(name):
            yield f"environments.{name}", environment.problems(), environment.warnings()
    for name, channel in deployment.notifications.by_name().items():
        yield f"notifications.{name}", channel.problems(), channel.warnings()
    for target in loaded.release.targets:
        name = loaded.config.place_of(target.name)
        if place := deployment.places.get(name):
            yield f"places.{name}.staging", place.staging.problems(target), place.staging.warnings(target)
            yield f"places.{name}.router", (), place.router.warnings(canary)
            if place.metrics is not None:
                yield f"places.{name}.metrics", (), place.metrics.warnings(place.router)
