"""What a release cost: the seconds of its stages, the GPUs that they kept busy, and money where prices are named."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from llm_pipeline.base.quantities import duration
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.config.target import Target
from llm_pipeline.release.candidate import is_trial, target_of
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.flow import step_named
from llm_pipeline.release.record import ReleaseRecord
from llm_pipeline.release.step import Gpus, Machine

_HOUR = 3600


class MeasuredCost(Frozen):
    """What one stage took, or several together.

    Attributes:
        seconds: One stage after another; 0 for a result that was reused.
        gpu_hours: Of all GPUs that were kept busy.
        price: In the deployment's currency; None where a GPU that was used has no price.
    """

    seconds: float = 0.0
    gpu_hours: float = 0.0
    price: float | None = 0.0

    def __add__(self, other: MeasuredCost) -> MeasuredCost:
        price = None if self.price is None or other.price is None else self.price + other.price
        return MeasuredCost(
            seconds=self.seconds + other.seconds, gpu_hours=self.gpu_hours + other.gpu_hours, price=price
        )

    def in_words(self, currency: str) -> str:
        """E.g. `42 min 3 s, 2.80 GPU hours, 11.20 USD`."""
        gpus = f", {self.gpu_hours:.2f} GPU hours" if self.gpu_hours else ""
        price = f", {self.price:.2f} {currency}" if self.gpu_hours and self.price is not None else ""
        return duration(self.seconds) + gpus + price


def target_at(release: ResolvedRelease, stage: str, subject: str, variant: str = "") -> Target:
    """The target of a stage: of a trial as its candidate has it, else in the variant that was chosen for it."""
    if is_trial(stage, subject):
        return release.target(subject)
    return release.target(target_of(subject)).varied(variant)


def chosen_variants(results: Iterable[StageResult]) -> dict[str, str]:
    """The variants that targets were released in, by target; none for a target's own arguments."""
    chosen = ((result.subject, result.metrics.get("variant")) for result in results if result.stage == "choose")
    return {target: str(variant) for target, variant in chosen if variant}


def busy_gpus(
    release: ResolvedRelease, deployment: Deployment, stage: str, subject: str, variant: str = ""
) -> tuple[str, int]:
    """The GPUs that a stage keeps busy, by their name in the catalog, and how many; an empty name for none."""
    step, host = step_named(stage), deployment.quantization_host
    if step is None or step.gpus is Gpus.NONE:
        return "", 0
    if step.machine is Machine.QUANTIZATION_HOST and host is not None:
        return host.accelerator, host.count
    if step.machine is Machine.TARGET_HOST:
        target = target_at(release, stage, subject, variant)
        return ("", 0) if target.accelerator == "cpu" else (target.accelerator, target.accelerator_count)
    return "", 0


def gpu_indices(deployment: Deployment, record: ReleaseRecord, stage: str, subject: str) -> tuple[int, ...] | None:
    """The GPUs of its host that a stage's own process may use, where the deployment names them; None for all."""
    step = step_named(stage)
    if step is None or step.gpus is not Gpus.TAKEN:
        return None
    if step.machine is Machine.QUANTIZATION_HOST:
        return deployment.quantization_host.gpus if deployment.quantization_host else None
    place = deployment.places.get(record.place_of(subject))
    staging = place.servers_here().get("staging") if place else None
    return staging.gpus if staging else None


def measured_cost(record: ReleaseRecord, result: StageResult, variants: Mapping[str, str]) -> MeasuredCost:
    """What a stage of a release took; a result that was reused cost its own release, not this one.

    Args:
        record: Of the release.
        result: The stage's.
        variants: In which its targets were released (`chosen_variants`).
    """
    if result.reused:
        return MeasuredCost()
    seconds = result.timings.total_seconds
    variant = variants.get(target_of(result.subject), "")
    accelerator, gpus = busy_gpus(record.release, record.deployment, result.stage, result.subject, variant)
    if not gpus:
        return MeasuredCost(seconds=seconds)
    hours, price = gpus * seconds / _HOUR, record.deployment.gpu_hour_prices.get(accelerator)
    return MeasuredCost(seconds=seconds, gpu_hours=hours, price=None if price is None else hours * price)


def release_cost(record: ReleaseRecord, results: Collection[StageResult]) -> MeasuredCost:
    """What all stages of a release took together."""
    variants = chosen_variants(results)
    return sum((measured_cost(record, result, variants) for result in results), MeasuredCost())
