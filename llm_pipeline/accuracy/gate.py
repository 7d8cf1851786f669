"""The accuracy gate: is a quantized model provably not worse than its baseline by more than the margin?

    judgement = judge_pairs(pair_items(read_items(baseline_dir), read_items(candidate_dir)), policy.accuracy)

GO needs the upper bound of the loss below the margin, pooled and for every task: an intersection-union test, so no
correction for several tasks is due (Berger 1982). A group of tasks is one task. By policy a task that is too small to
prove its margin need only not be shown to be beyond it. NO_GO needs the lower bound above a margin; over tasks the
claim "some task lost too much" is corrected by Holm's method. What is between is INCONCLUSIVE and says how many items
would decide. Nothing is rounded before it is compared, and a bound that equals its limit passes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from llm_pipeline.accuracy.evaluation import PLAIN, Scoring
from llm_pipeline.accuracy.looks import TYPICAL_FLIPS, items_needed
from llm_pipeline.accuracy.paired import (
    Comparison,
    PairedAccuracy,
    TaskPairs,
    bound_losses,
    compare,
)
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.statistics.evalue import clusters_to_decide
from llm_pipeline.statistics.intervals import Bounds, items_to_decide
from llm_pipeline.statistics.losses import ENOUGH_CLUSTERS
from llm_pipeline.statistics.score_test import SCORE_TEST, LossTest

_WORST_PARTS = 3


def _whole(alpha: float) -> float:
    return alpha


@dataclass(frozen=True)
class DecisionRule:
    """How a look at the data decides.

    Attributes:
        test: Bounds the losses.
        level: The error that this look may make in passing, of the error that all looks together may.
        harm_level: The same in failing.
    """

    test: LossTest = SCORE_TEST
    level: Callable[[float], float] = _whole
    harm_level: Callable[[float], float] = _whole


ERROR_FACT = "error that this gate may make"
"""Name of the fact that says at which error a gate judged, where it is not all that the policy leaves."""

AT_ONCE = DecisionRule()
"""One look at all items, with the whole error to spend."""


def judge_pairs(
    tasks: Sequence[TaskPairs],
    policy: AccuracyPolicy,
    rule: DecisionRule = AT_ONCE,
    sizes: Mapping[str, int] | None = None,
) -> Judgement:
    """Judge a candidate beside its baseline, at one look.

    Args:
        tasks: The scores of both, paired.
        policy: Margins, confidence, smallest sample and required tasks.
        rule: How the look decides.
        sizes: Pairs that each task will have when all is asked; None when all is.

    Returns:
        GO, NO_GO, INCONCLUSIVE or ANOMALOUS, with the pooled loss first in the evidence, then each task's.
    """
    alpha = 1.0 - policy.confidence
    comparison = bound_losses(tasks, 1.0 - rule.level(alpha), 1.0 - rule.harm_level(alpha), rule.test)
    enough = comparison.pooled.pairs >= policy.minimum_items
    verdict = _pooled_verdict(comparison.pooled, policy) if enough else Verdict.INCONCLUSIVE
    pooled = _evidence(comparison.pooled, policy.margin, policy, verdict)
    sizes = sizes or {task.name: len(task.scores) for task in tasks}
    verdicts = _task_verdicts(tasks, comparison.tasks, policy, rule, sizes) if enough else {}
    facts = [
        _evidence(task, policy.task_margin, policy, verdicts.get(task.name, Verdict.INCONCLUSIVE))
        for task in comparison.tasks
    ]
    judgement = judge("", [pooled, *_completeness(comparison, policy), *facts])
    return judgement.model_copy(update={"summary": _summary(judgement, comparison, policy)})


def compare_as_judged(
    baseline: Sequence[ScoredItem],
    candidate: Sequence[ScoredItem],
    policy: AccuracyPolicy,
    judgement: Judgement | None,
    tasks: Iterable[str] | None = None,
    *,
    scoring: Scoring = PLAIN,
) -> Comparison:
    """The comparison with the baseline, with the bounds that the judgement used.

    A look decides by bounds that are wider than those of a sample of its size: they hold at all looks together (C.
    Jennison and B. W. Turnbull, Interim analyses: the repeated confidence interval approach, Journal of the Royal
    Statistical Society B 51 (1989) 305-361). Without a judgement of the loss the bounds are those of the sample.

    Raises:
        IntegrityError: As `compare`.
    """
    asked = {(item.task, item.item_id) for item in candidate}
    facts = {fact.name: fact for fact in judgement.evidence} if judgement else {}
    error = facts[ERROR_FACT].measured if ERROR_FACT in facts else None
    confidence = policy.confidence if error is None else 1.0 - error
    comparison = compare(baseline, candidate, confidence, tasks, asked, scoring=scoring)
    return comparison.model_copy(
        update={
            "pooled": _between_bounds(comparison.pooled, facts),
            "tasks": tuple(_between_bounds(task, facts) for task in comparison.tasks),
        }
    )


def _between_bounds(part: PairedAccuracy, facts: Mapping[str, Evidence]) -> PairedAccuracy:
    fact = facts.get(_fact_name(part))
    if part.loss is None or fact is None or fact.lower is None or fact.upper is None:
        return part
    bounds = Bounds(estimate=part.loss.estimate, lower=fact.lower, upper=fact.upper)
    return part.model_copy(update={"loss": bounds})


def _pooled_verdict(pooled: PairedAccuracy, policy: AccuracyPolicy) -> Verdict:
    if pooled.loss is None:
        return Verdict.INCONCLUSIVE
    if -pooled.loss.upper > policy.anomalous_gain:
        return Verdict.ANOMALOUS
    if pooled.loss.lower > policy.margin:
        return Verdict.NO_GO
    return Verdict.GO if _may_pass(pooled, policy.margin) else Verdict.INCONCLUSIVE


def _task_verdicts(
    tasks: Sequence[TaskPairs],
    compared: Sequence[PairedAccuracy],
    policy: AccuracyPolicy,
    rule: DecisionRule,
    sizes: Mapping[str, int],
) -> dict[str, Verdict]:
    samples = [task.sample if task.scores else None for task in tasks]
    harm = [rule.test.p_value(sample, policy.task_margin) if sample else 1.0 for sample in samples]
    luck = [rule.test.p_value(sample.mirrored(), policy.anomalous_gain) if sample else 1.0 for sample in samples]
    alpha = 1.0 - policy.confidence
    harmed, lucky = _rejected(harm, alpha, rule.harm_level), _rejected(luck, alpha, rule.level)
    verdicts = {}
    for number, task in enumerate(compared):
        if number in lucky:
            verdicts[task.name] = Verdict.ANOMALOUS
        elif number in harmed:
            verdicts[task.name] = Verdict.NO_GO
        else:
            unharmed = is_only_for_harm(task.name, sizes, policy) and _seems_unharmed(task, sizes[task.name], policy)
            passes = unharmed or _may_pass(task, policy.task_margin)
            verdicts[task.name] = Verdict.GO if passes else Verdict.INCONCLUSIVE
    return verdicts


def is_only_for_harm(task: str, sizes: Mapping[str, int], policy: AccuracyPolicy) -> bool:
    """Whether a task need not prove its margin: the policy excuses small ones, unless `required_tasks` names it.

    A task is small if its items cannot show a lossless model to be lossless with a power of 0.9 at `TYPICAL_FLIPS`.
    That depends only on the planned items, so it is known before the first answer.
    """
    if policy.small_tasks == "prove" or task in policy.required_tasks:
        return False
    return sizes.get(task, 0) < items_needed(policy.task_margin, TYPICAL_FLIPS, policy.confidence)


def _seems_unharmed(task: PairedAccuracy, size: int, policy: AccuracyPolicy) -> bool:
    """Whether a small task shows no harm so far; a loss that looks like harm is watched until all items are scored."""
    return task.loss is not None and (task.pairs >= size or task.loss.estimate <= policy.task_margin)


def _rejected(p_values: Sequence[float], alpha: float, level: Callable[[float], float]) -> set[int]:
    """What Holm's procedure rejects; at a look each of its levels is the one that its share of the error buys there.

    W. Maurer and F. Bretz, Multiple testing in group sequential trials using graphical approaches, Statistics in
    Biopharmaceutical Research 5 (2013) 311-320.
    """
    rejected = set[int]()
    for number in sorted(range(len(p_values)), key=p_values.__getitem__):
        if p_values[number] >= level(alpha / (len(p_values) - len(rejected))):
            break
        rejected.add(number)
    return rejected


def _may_pass(part: PairedAccuracy, margin: float) -> bool:
    return part.loss is not None and part.loss.upper < margin and not _is_too_weak(part, margin)


def _is_too_weak(part: PairedAccuracy, margin: float) -> bool:
    """A baseline that scores no more than the margin cannot lose more than the margin: its pass would say nothing."""
    return part.bounded and part.baseline is not None and part.baseline.estimate <= margin


def _evidence(part: PairedAccuracy, margin: float, policy: AccuracyPolicy, verdict: Verdict) -> Evidence:
    return Evidence(
        name=_fact_name(part),
        verdict=verdict,
        measured=part.loss.estimate if part.loss else None,
        lower=part.loss.lower if part.loss and math.isfinite(part.loss.lower) else None,
        upper=part.loss.upper if part.loss and math.isfinite(part.loss.upper) else None,
        limit=margin,
        unit="fraction",
        samples=part.pairs,
        detail=_detail(part, margin, policy, verdict),
    )


def _fact_name(part: PairedAccuracy) -> str:
    return f"accuracy loss, {part.name}"


def _detail(part: PairedAccuracy, margin: float, policy: AccuracyPolicy, verdict: Verdict) -> str:
    if part.loss is None:
        return "No item is scored on both sides."
    clusters = f" in {part.clusters} clusters" if part.clusters is not None else ""
    flips = f"{part.lost} lost, {part.gained} gained{clusters}.{_worst_parts(part)}"
    if verdict is Verdict.ANOMALOUS:
        return (
            f"{flips} Quantization does not make models this much better: look for leaked answers or a broken baseline."
        )
    if verdict is Verdict.INCONCLUSIVE and _is_too_weak(part, margin):
        return f"{flips} The baseline itself scores no more than the margin, so a loss could not show."
    if verdict is Verdict.GO and not _may_pass(part, margin):
        return (
            f"{flips} Too few items to prove its margin: no harm is shown, and the policy asks no more of a small task."
        )
    return f"{flips} {_more_items(part, margin, policy)}" if verdict is Verdict.INCONCLUSIVE else flips


def _worst_parts(part: PairedAccuracy) -> str:
    """Where a group lost most, for information: its small tasks are not judged by themselves."""
    measured = [(own.loss.estimate, own) for own in part.parts if own.loss is not None]
    worst = sorted(measured, key=lambda one: (-one[0], one[1].name))[:_WORST_PARTS]
    told = ", ".join(f"{own.name} {100 * loss:+.1f} ({own.pairs} items)" for loss, own in worst)
    return f" Largest losses of its {len(part.parts)} tasks, in points: {told}." if told else ""


def _more_items(part: PairedAccuracy, margin: float, policy: AccuracyPolicy) -> str:
    estimate = part.loss.estimate if part.loss else 0.0
    if part.clusters is not None and part.clusters < ENOUGH_CLUSTERS:
        clusters = clusters_to_decide(margin, policy.confidence)
        return (
            f"With so few clusters, whole clusters are tested: {clusters} of them show this margin if nothing changes."
        )
    needed = items_to_decide(part.variance, margin - estimate, policy.confidence)
    if needed is None:
        return "The loss equals the limit: no number of items would decide."
    more = max(needed - part.pairs, policy.minimum_items - part.pairs)
    return (
        f"About {more} more items would decide (90 % power)."
        if more > 0
        else "These items are enough for one test, but not for all tasks and looks together."
    )


def _completeness(comparison: Comparison, policy: AccuracyPolicy) -> list[Evidence]:
    pooled = comparison.pooled
    facts = []
    if pooled.pairs < policy.minimum_items:
        facts.append(_shortage("paired items", pooled.pairs, policy.minimum_items, "Too few items to decide anything."))
    if pooled.unpaired:
        gaps = ", ".join(f"{task.name}: {task.unpaired}" for task in comparison.tasks if task.unpaired)
        facts.append(_shortage("items without a partner or a score", pooled.unpaired, 0, f"By task: {gaps}."))
    judged = {own.name for task in comparison.tasks for own in (task, *task.parts) if own.pairs}
    if missing := [task for task in policy.required_tasks if task not in judged]:
        required = len(policy.required_tasks)
        facts.append(
            _shortage("required tasks", required - len(missing), required, f"Not evaluated: {', '.join(missing)}.")
        )
    if not comparison.tasks:
        facts.append(_shortage("tasks compared", 0, 1, "No task was evaluated."))
    return facts


def _shortage(name: str, measured: int, limit: int, detail: str) -> Evidence:
    return Evidence(
        name=name,
        verdict=Verdict.INCONCLUSIVE,
        measured=float(measured),
        limit=float(limit),
        unit="items" if "items" in name else "tasks",
        samples=measured,
        detail=detail,
    )


_OPENINGS = {
    Verdict.GO: "Not worse than the baseline by more than the margin",
    Verdict.NO_GO: "Worse than the baseline by more than the margin",
    Verdict.INCONCLUSIVE: "Neither shown to be good enough nor shown to be too bad",
    Verdict.ANOMALOUS: "Better than the baseline by more than quantization can explain",
}


def _summary(judgement: Judgement, comparison: Comparison, policy: AccuracyPolicy) -> str:
    pooled = comparison.pooled
    if pooled.loss is None:
        return f"{_OPENINGS[judgement.verdict]}: no item is scored on both sides."
    worst = [fact.name for fact in judgement.evidence[1:] if fact.verdict is judgement.verdict]
    because = "" if judgement.verdict in (Verdict.GO, judgement.evidence[0].verdict) else f" ({'; '.join(worst)})"
    return (
        f"{_OPENINGS[judgement.verdict]}{because}: loss {100 * pooled.loss.estimate:+.2f} points, "
        f"{100 * comparison.confidence:.4g} % upper bound {100 * pooled.loss.upper:+.2f}, "
        f"margin {100 * policy.margin:g}, on {pooled.pairs} items of {len(comparison.tasks)} tasks."
    )
