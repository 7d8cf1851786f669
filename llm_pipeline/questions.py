"""The questions that a release puts to people, on a terminal and in Airflow's form alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.untrusted_text import markdown, one_line
from llm_pipeline.config.release import HOUR
from llm_pipeline.release.candidate import Candidate
from llm_pipeline.release.choice import recipes_in_words
from llm_pipeline.release.evidence_text import facts_table, markdown_table
from llm_pipeline.release.flow import stage_names, steps_of
from llm_pipeline.release.measured_cost import release_cost
from llm_pipeline.release.step import Work
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.store.place_state import serving_at

if TYPE_CHECKING:
    from llm_pipeline.planning.model import Plan


@dataclass(frozen=True)
class Question:
    """What a person is to decide.

    Attributes:
        line: The whole question on one line, for a terminal.
        title: The question as the heading of a form.
        body: What the person should know, as Markdown.
        declined: What became of the release when the answer is no, for the log.
        open: What is left to do when nobody can be asked, for the log.
        amounts: What is to be spent, by name: an approval of as much, or more, is an answer to it, in any run.
    """

    line: str
    title: str
    body: str
    declined: str
    open: str
    amounts: Mapping[str, float] = field(default_factory=dict)


def question_of(step: str, flow: ReleaseProgress, targets: Sequence[str]) -> Question | None:
    """What a step of the flow asks about a release and some targets; None when nobody need be asked this time."""
    if step == "plan":
        return budget_question(flow)
    if step == "review_license":
        return _license_question(flow)
    return production_question(flow, targets) if flow.release.approval.required else None


def budget_question(flow: ReleaseProgress) -> Question | None:
    """Whether a release may take more than its budget; asked before anything large is fetched.

    Raises:
        IntegrityError: There is a budget, and no plan to compare it with.
    """
    budget = flow.record.budget
    if not budget:
        return None
    total = _read_plan(flow).total
    planned: dict[str, float] = {}
    if budget.hours is not None:
        planned["hours"] = total.seconds / HOUR
    if budget.cost is not None:
        planned["cost"] = total.price or 0.0  # without a price no GPU is needed: see `check_budget`
    if all(amount <= getattr(budget, what) for what, amount in planned.items()):
        return None
    release_id, takes, limit = flow.record.release_id, total.in_words(total.currency), budget.in_words(total.currency)
    seconds_only = steps_of(Work.SHORT)  # nobody decides by them
    unknown = ", ".join(name for name in total.not_known if name.partition(" ")[0] not in seconds_only)
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
    from llm_pipeline.planning.model import format_plan

    try:
        return f"the plan:\n{format_plan(_read_plan(flow))}"
    except IntegrityError as error:
        return str(error)


def _read_plan(flow: ReleaseProgress) -> Plan:
    from llm_pipeline.planning.model import Plan  # a DAG is drawn without what plans are made of

    name = f"releases/{flow.record.release_id}/plan.json"
    hint = "run the release again: its first stage writes the plan anew"
    plan, _ = flow.store.read_as(name, Plan, hint=hint)
    if plan is None:
        raise IntegrityError("the release has no plan", where=name, hint=hint)
    return plan


def _license_question(flow: ReleaseProgress) -> Question | None:
    """Whether a model under a changed licence is to be released; asked before a byte is fetched."""
    change = str(flow.result("resolve").metrics.get("license_change") or "")
    if not change:
        return None
    lines = [
        f"Release {markdown(flow.record.release_id)}, commit `{flow.record.model.commit}`.",
        "",
        f"**Licence or gating, since the release before:** {markdown(change)}",
        "",
        "Nothing was fetched yet. **Approve** continues with the download; **Reject** ends the release here.",
    ]
    return Question(
        line=f"The licence of {flow.record.model.id} changed ({change}). Release it?",
        title=one_line(f"Release {flow.record.model.id} under its changed licence?"),
        body="\n".join(lines),
        declined=f"rejected, for the licence changed ({change}): nothing was fetched",
        open=f"the licence changed ({change}) and a human decides: run it again with --approve-license (or --reject)",
    )


def production_question(flow: ReleaseProgress, targets: Sequence[str]) -> Question:
    """Whether the targets that passed their gates are to be promoted."""
    chosen = {target: flow.chosen_recipe(target) for target in targets}
    taken = {target: Candidate(target, chosen[target], flow.chosen_variant(target)).in_words for target in targets}
    recipes, release_id = recipes_in_words(taken), flow.record.release_id
    left_out = [target for target in flow.targets if target not in targets]
    lines = [
        f"Release {markdown(release_id)}, recipe {markdown(recipes)}, commit `{flow.record.model.commit}`.",
        "",
        _gates(flow, {*chosen.values(), *targets}),
    ]
    if left_out:
        lines += ["", f"Not offered because a gate did not pass: {markdown(', '.join(left_out))}."]
    lines += ["", "**Approve** starts the canary; **Reject** ends the release here."]
    return Question(
        line=f"Promote {release_id} ({recipes}) to production?",
        title=one_line(f"Promote {flow.record.model.id} to production on {', '.join(targets)}?"),
        body="\n".join(lines),
        declined="rejected: production is unchanged",
        open="the gates say GO; production waits for a human: run it again with --approve (or --reject)",
    )


def replaced(flow: ReleaseProgress, targets: Sequence[str]) -> dict[str, str]:
    """The release that serves now, by target; without the targets where none does."""
    serving = {target: serving_at(flow.store, flow.record.place_of(target)) for target in targets}
    return {target: one.pointer.release_id for target, one in serving.items() if one is not None}


def approval_facts(flow: ReleaseProgress, targets: Sequence[str]) -> str:
    """What helps to decide about production, as Markdown: what is replaced, the accuracy of each task, the cost.

    It is no part of what is approved, for it may change while the question waits.
    """
    old = {target: markdown(release_id) for target, release_id in replaced(flow, targets).items()}
    lines = [f"On {markdown(target)} it replaces {old.get(target, 'nothing')}." for target in targets]
    for recipe in dict.fromkeys(map(flow.chosen_recipe, targets)):
        gate = flow.find("accuracy", recipe)
        if gate is not None and gate.judgement is not None:
            lines += ["", f"**Accuracy of {markdown(recipe)}, compared with the baseline:**", ""]
            lines += [facts_table(gate.judgement)]
    spent = release_cost(flow.record, flow.results().values()).in_words(flow.record.deployment.currency)
    return "\n".join([*lines, "", f"The release has taken {markdown(spent)} so far."])


def _gates(flow: ReleaseProgress, subjects: set[str]) -> str:
    stages, targets = stage_names(), [*flow.targets]
    gates = [result for (_, subject), result in flow.results().items() if subject in subjects]
    gates.sort(key=lambda gate: (stages.index(gate.stage), gate.subject in targets and targets.index(gate.subject)))
    return markdown_table(gates)


def replaces_nothing(flow: ReleaseProgress, target: str) -> bool:
    """Whether a target's candidate is compared with nothing: then nobody is asked before a step of its canary."""
    serving = serving_at(flow.store, flow.record.place_of(target))
    return serving is None or serving.pointer.repository == flow.artifact("package", target, "repository")
