"""The questions that a release puts to people, on a terminal and in Airflow's form alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from llm_pipeline.accuracy.choice import recipes_in_words
from llm_pipeline.base.untrusted_text import markdown, one_line
from llm_pipeline.flow import ReleaseProgress
from llm_pipeline.release.evidence_text import markdown_table
from llm_pipeline.store.places import serving_at


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
        from llm_pipeline.planning.budget import budget_question  # a plan asks nobody

        return budget_question(flow)
    if step == "review_license":
        return _license_question(flow)
    return production_question(flow, targets) if flow.release.approval.required else None


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
    recipes, release_id = recipes_in_words(chosen), flow.record.release_id
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


def _gates(flow: ReleaseProgress, subjects: set[str]) -> str:
    gates = [result for (_, subject), result in sorted(flow.results().items()) if subject in subjects]
    return markdown_table(sorted(gates, key=lambda result: result.timings.started_at))


def replaces_nothing(flow: ReleaseProgress, target: str) -> bool:
    """Whether a target's candidate is compared with nothing: then nobody is asked before a step of its canary."""
    serving = serving_at(flow.store, flow.record.place_of(target))
    return serving is None or serving.pointer.repository == flow.artifact("package", target, "repository")
