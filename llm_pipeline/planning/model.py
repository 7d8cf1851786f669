"""The plan as data: what a release will do, on what, and what is known to stand in its way."""

from __future__ import annotations

from collections.abc import Sequence

from llm_pipeline.base.quantities import byte_size
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.release import ExpectedScore
from llm_pipeline.loadtest.duration import SampleSize
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.gate_power import GatePower
from llm_pipeline.planning.memory import weight_bytes
from llm_pipeline.planning.quantization_plan import GpuCost
from llm_pipeline.planning.stage_cost import PlannedStage, TotalCost
from llm_pipeline.planning.target_plan import TargetPlan
from llm_pipeline.planning.task_pool import TaskItems

_COPIES = 2
"""The engine, and the model repository that holds it."""


class DiskNeed(Frozen):
    """What a release writes when nothing of it exists yet, in bytes.

    Attributes:
        download: The model as published.
        recipes: All quantized checkpoints.
        engines: Engines that hold the weights, and their model repositories, if the largest recipe is chosen.
        work: The largest of them once more, in the work directory while it is made.
    """

    download: int
    recipes: int
    engines: int
    work: int

    @property
    def store(self) -> int:
        """What the artifact store must hold."""
        return self.download + self.recipes + self.engines


def disk_need(facts: ModelFacts, recipes: Sequence[QuantizationRecipe], engines: int) -> DiskNeed:
    """The need of a release; the recipe `none` passes the download through and adds no checkpoint.

    Args:
        facts: The model.
        recipes: All that may be tried.
        engines: Targets whose engine holds the weights (`holds_weights`); others serve the checkpoint as it is.
    """
    download = facts.stored_bytes
    sizes = [weight_bytes(facts, recipe) for recipe in recipes]
    quantized = [size for size, recipe in zip(sizes, recipes, strict=True) if recipe.weights != "none"]
    return DiskNeed(
        download=download,
        recipes=sum(quantized),
        engines=engines * _COPIES * max(sizes),
        work=max(download, *sizes),
    )


class DiskPlan(Frozen):
    """Disk needed and disk free, in bytes.

    Attributes:
        free_store: Free space of the store; None where it is not on this machine's file systems.
        free_work: Free space of the work directory.
        one_file_system: Store and work share the same free space.
    """

    need: DiskNeed
    free_store: int | None
    free_work: int
    one_file_system: bool

    def problems(self) -> tuple[str, ...]:
        """What does not fit, one line each."""
        if self.one_file_system:
            return _short("store and work_root", self.need.store + self.need.work, self.free_work)
        short = () if self.free_store is None else _short("store", self.need.store, self.free_store)
        return (*short, *_short("work_root", self.need.work, self.free_work))


class Plan(Frozen):
    """What `llm-pipeline plan` found.

    Attributes:
        config: The release config's file.
        revision: Of the model, as this run has it.
        overrides: What else the run has otherwise than the config says, in words; empty for nothing.
        facts: The model; None where nothing of it was to be read, and the release config states no sizes.
        stages: Every step, in order.
        total: What all steps take that will be computed.
        disk: None where the model's sizes are not known.
        ladders: Names of the recipes that are legal on each target, cheapest first.
        expected: What the baseline must score, by task.
        tasks: The tasks that are scored on the checkpoint.
        gates: What the accuracy gates need, and what they have.
        load_test: Requests that the load gate needs to say GO, and those that it has.
        gpus: What quantization and scoring take; None where the deployment names no GPUs for them, or the model's facts
            is not known.
        warnings: Nothing of this stops the release; all of it deserves a look.
    """

    config: str
    release: str
    model: str
    revision: str
    overrides: str = ""
    dtype: str
    deployment: str
    facts: ModelFacts | None
    stages: tuple[PlannedStage, ...]
    total: TotalCost
    targets: tuple[TargetPlan, ...]
    disk: DiskPlan | None
    ladders: dict[str, tuple[str, ...]]
    expected: dict[str, ExpectedScore]
    tasks: tuple[TaskItems, ...]
    gates: tuple[GatePower, ...]
    load_test: SampleSize
    gpus: GpuCost | None
    warnings: tuple[str, ...]


def _short(what: str, need: int, free: int) -> tuple[str, ...]:
    return (f"{what}: {byte_size(need)} needed, {byte_size(free)} free",) if need > free else ()
