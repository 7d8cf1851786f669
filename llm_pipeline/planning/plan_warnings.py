"""What does not stop a release, and deserves a look before it starts: one line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from llm_pipeline.config.loading import LoadedRelease
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning import host
from llm_pipeline.planning.model import TargetPlan
from llm_pipeline.planning.quantization_plan import GpuCost
from llm_pipeline.planning.reuse import Step
from llm_pipeline.planning.stage_cost import StepCost
from llm_pipeline.release.time_limits import time_limit_seconds

_PACKAGES = {"openvino_cpu": "openvino-genai", "transformers_torch": "transformers", "vllm": "vllm"}
"""What engines need beside the Triton server that serves them."""

_TIGHT = 0.5
"""A prediction above this share of a time limit is worth a warning: predictions are off by a factor."""


def size_warnings(release: ResolvedRelease, facts: ModelFacts | None) -> tuple[str, ...]:
    """What is not judged of a model whose sizes are not known."""
    if facts:
        return ()
    speed = ", policy speed" if release.policy.speed else ""
    return (f"memory and disk{speed} are not judged: the sizes of {release.model.id} are not known",)


def gpu_warnings(
    loaded: LoadedRelease, gpus: GpuCost | None, facts: ModelFacts | None, *, here: bool
) -> tuple[str, ...]:
    """What does not fit the GPUs that quantize, or that nothing is known of them."""
    if gpus:
        return tuple(line for recipe in gpus.recipes for line in recipe.warnings)
    if here or facts is None:
        return ()
    where = f"deployment {loaded.deployment.name}"
    return (f"memory and time of quantization are not predicted: {where} names no quantization_host",)


def target_warnings(targets: Sequence[TargetPlan]) -> tuple[str, ...]:
    """What is not known or refused of recipes on targets, and images that are not pinned."""
    found = [*_pin_warnings(targets)]
    for target in targets:
        found += [f"{target.name}: {warning}" for warning in target.warnings]
        for recipe in target.recipes:
            name = f"{recipe.recipe} on {target.name}"
            found += [f"{name}: {warning}" for warning in recipe.warnings]
            if not recipe.legal:
                found.append(f"{name} is refused, so {target.name} fails if {recipe.recipe} is chosen: {recipe.reason}")
    return tuple(found)


def environment_warnings(loaded: LoadedRelease) -> tuple[str, ...]:
    """Engines that are Python packages of one environment while another one serves them."""
    found = []
    for target in loaded.release.targets:
        place = loaded.places[target.name]
        serves = loaded.deployment.places[place].environment
        if target.engine in _PACKAGES and serves != target.environment:
            found.append(
                f"{target.name} is built in environment {target.environment} and served in {serves}: "
                f"{_PACKAGES[target.engine]} must be in both, or places.{place}.environment name the first one"
            )
    return tuple(found)


def _pin_warnings(targets: Sequence[TargetPlan]) -> tuple[str, ...]:
    unpinned: dict[str, list[str]] = {}
    for target in targets:
        if target.container and not target.digest:
            unpinned.setdefault(target.container, []).append(target.name)
    return tuple(
        f"{', '.join(names)}: {image} is not pinned, and a tag may come to mean another image: "
        "append its digest, @sha256:..., as `docker buildx imagetools inspect` shows it"
        for image, names in unpinned.items()
    )


def host_warnings(loaded: LoadedRelease, obstacles: tuple[str, ...], *, here: bool) -> tuple[str, ...]:
    """What this machine lacks; what stops nothing because the stages run elsewhere."""
    release, deployment = loaded.release, loaded.deployment
    found = [*host.missing_credentials(deployment, release.model.source), *host.missing_signing_keys(deployment)]
    if here:
        found += host.busy_ports(deployment, tuple(loaded.places.values()))
    else:
        found += [f"on this machine, {obstacle}" for obstacle in obstacles]
    return tuple(found)


def time_warnings(release: ResolvedRelease, costs: Mapping[Step, StepCost]) -> Iterator[str]:
    """The steps whose expected time is near their time limit, or beyond it."""
    for (stage, subject), cost in costs.items():
        limit = time_limit_seconds(release, stage)
        if cost.seconds is not None and cost.seconds > _TIGHT * limit:
            hours, most = f"{cost.seconds / 3600:.2g}", f"{limit / 3600:.2g}"
            yield (
                f"{stage} {subject}".strip() + f" is expected to take {hours} h and is stopped after {most} h: "
                f"raise time_limit_hours of policy {release.policy.name}"
            )
