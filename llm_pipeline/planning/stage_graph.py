"""The steps that a release will take, in order, with what each works on."""

from __future__ import annotations

from collections.abc import Iterator

from llm_pipeline.base.records import Frozen
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.ladder import climbing_order
from llm_pipeline.planning.reuse import StepReuse
from llm_pipeline.planning.stage_cost import StepCost
from llm_pipeline.release.tasks import well_gone_steps


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
    """Name and subject of every step of a release that goes well, in the order in which one machine runs them."""
    for step, subject in well_gone_steps(release, climbing_order(release, facts)):
        yield step.name, subject
