"""Whether a release may take what its plan says: the budget, and the question to a person when it is exceeded.

The plan is the one that `resolve` wrote: it counts what will be computed, one step after the other, and every recipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pydantic import ValidationError

from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.base.untrusted_text import markdown, one_line
from llm_pipeline.config.budget import HOUR, Budget
from llm_pipeline.planning.model import Plan
from llm_pipeline.planning.reuse import Step
from llm_pipeline.planning.stage_cost import StepCost, TotalCost
from llm_pipeline.planning.table import format_plan
from llm_pipeline.release.flow import step_named
from llm_pipeline.release.step import Work

if TYPE_CHECKING:
    from llm_pipeline.flow import ReleaseProgress
    from llm_pipeline.questions import Question
    from llm_pipeline.release.loading import LoadedRelease


def check_budget(loaded: LoadedRelease, costs: Mapping[Step, StepCost]) -> None:
    """Make sure that a budget can be compared with the plan.

    Raises:
        ConfigError: It limits the cost, and a GPU has no price.
    """
    needed = {cost.accelerator for cost in costs.values() if cost.gpus and cost.accelerator}
    if loaded.config.budget.cost is not None and (free := sorted(needed - loaded.deployment.gpu_hour_prices.keys())):
        name = loaded.deployment.name
        raise ConfigError(
            f"budget.cost: what {', '.join(free)} costs is not known in deployment {name}",
            where=str(loaded.path),
            hint=f"add it to gpu_hour_prices of deployments/{name}.yaml, or limit budget.hours instead",
        )


def budget_question(flow: ReleaseProgress) -> Question | None:
    """Whether a release may take more than its budget; asked before anything large is fetched.

    Raises:
        IntegrityError: There is a budget, and no plan to compare it with.
    """
    from llm_pipeline.questions import Question  # a plan asks nobody

    budget = flow.record.budget
    if not budget:
        return None
    total = _read_plan(flow).total
    planned = dict(_planned(total, budget))
    if all(amount <= getattr(budget, what) for what, amount in planned.items()):
        return None
    release_id, takes, limit = flow.record.release_id, total.in_words, budget.in_words(total.currency)
    unknown = ", ".join(name for name in total.not_known if not _takes_seconds(name))
    lines = [
        f"Release {markdown(release_id)}, commit `{flow.record.model.commit}`.",
        "",
        "| | |",
        "|---|---|",
        f"| planned, one step after the other | {markdown(takes)} |",
        f"| budget | {markdown(limit)} |",
        "",
        *([f"How long these take is not known, and in no sum: {markdown(unknown)}.", ""] if unknown else []),
        "The log of this task has the whole plan; nothing was computed yet.",
        "**Approve** continues; an approval counts for every later run of this release that takes no more.",
        "**Reject** ends the release here.",
    ]
    again = "run it again with --approve-budget (or --reject)"
    return Question(
        line=f"{release_id} is planned to take {takes}, and its budget is {limit}. Go on?",
        title=one_line(f"Spend more than the budget on {flow.record.model.id}?"),
        body="\n".join(lines),
        declined=f"rejected, for {takes} is more than the budget of {limit}: nothing was computed",
        open=f"the plan takes {takes}, more than the budget of {limit}: {again}",
        amounts=planned,
    )


def planned_text(flow: ReleaseProgress) -> str:
    """The plan that a release was resolved with, for the log; empty where it has none."""
    try:
        return f"the plan:\n{format_plan(_read_plan(flow))}"
    except IntegrityError as error:
        return str(error)


def _takes_seconds(planned: str) -> bool:
    """Whether a planned step, named with its subject, takes so little time that nobody decides by it."""
    step = step_named(planned.partition(" ")[0])
    return step is not None and step.work is Work.SHORT


def _planned(total: TotalCost, budget: Budget) -> Iterator[tuple[str, float]]:
    """What a budget limits, by its name there."""
    if budget.hours is not None:
        yield "hours", total.seconds / HOUR
    if budget.cost is not None:
        yield "cost", total.price or 0.0  # without a price no GPU is needed: see `check_budget`


def _read_plan(flow: ReleaseProgress) -> Plan:
    name = f"releases/{flow.record.release_id}/plan.json"
    document = flow.store.read_document(name)
    hint = "run the release again: its first stage writes the plan anew"
    if document is None:
        raise IntegrityError("the release has no plan", where=name, hint=hint)
    try:
        return Plan.model_validate(document.value)
    except ValidationError as error:
        raise IntegrityError(
            f"the plan cannot be understood: {error.errors()[0]['msg']}", where=name, hint=hint
        ) from error
