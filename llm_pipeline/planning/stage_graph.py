"""The stages that a release will run, in order, with what each works on."""

from __future__ import annotations

from collections.abc import Iterator

from llm_pipeline.base.records import Frozen
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.ladder import climbing_order
from llm_pipeline.planning.reuse import StepReuse
from llm_pipeline.planning.stage_cost import StepCost

APPROVAL = "approve"
"""The human decision: a step of the flow that is no stage."""


class PlannedStage(Frozen):
    """One step of the release.

    Attributes:
        subject: The recipe, target or canary step it works on; empty for one-off stages.
        reuse: What will become of it; None where the store could not be asked.
        cost: What it takes when it is computed.
    """

    stage: str
    subject: str = ""
    reuse: StepReuse | None = None
    cost: StepCost = StepCost()


def planned_steps(release: ResolvedRelease, facts: ModelFacts | None = None) -> Iterator[tuple[str, str]]:
    """Stage and subject of every step of a release that goes well, in the order in which one machine runs them.

    Of the recipes it has all; on a ladder that is climbed, those behind one that passed everywhere are left out.
    """
    for stage in ("resolve", "eval_data", "download", "baseline", "baseline_gate"):
        yield stage, ""
    for recipe in climbing_order(release, facts):
        yield "quantize", recipe
        yield "accuracy", recipe
    for target in release.targets:
        for stage in ("choose", "build", "package", "staging", "served_accuracy", "load_test", "staging_down"):
            yield stage, target.name
    if release.approval.required:
        yield APPROVAL, ""
    for target in release.targets:
        for percent in release.policy.canary.steps_percent:
            yield "canary", f"{target.name}:{percent:g}"
        yield "settle", target.name
    yield "report", ""
