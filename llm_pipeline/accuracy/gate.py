"""The accuracy gate: is a quantized model provably not worse than its baseline by more than the margin?

    judgement = judge_pairs(pair_items(read_items(baseline_dir), read_items(candidate_dir)), policy.accuracy)

GO needs the upper bound of the loss below the margin, pooled and for every task: an intersection-union test, so no
correction for several tasks is due (Berger 1982). A group of tasks is one task. NO_GO needs the lower bound above a
margin; over tasks the claim "some task lost too much" is corrected by Holm's method. What is between is INCONCLUSIVE
and says how many items would decide. Nothing is rounded before it is compared, and a bound that equals its limit passes
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from llm_pipeline.accuracy.evaluation import PLAIN, Scoring
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
from llm_pipeline.statistics.intervals import Bounds, items_to_decide
from llm_pipeline.statistics.losses import ENOUGH_CLUSTERS
from llm_pipeline.statistics.score_test import SCORE_TEST

ANOMALOUS_GAIN = 0.05
"""A gain that is shown to be beyond it: quantization does not make models better."""

_WORST_PARTS = 3


def _whole(alpha: float) -> float:
    return alpha


@dataclass(frozen=True)
class DecisionRule:
    """How a look at the data decides.

    Attributes:
        level: The error that this look may make in passing, of the error that all looks together may.
        harm_level: The same in failing.
    """

    level: Callable[[float], float] = _whole
    harm_level: Callable[[float], float] = _whole


AT_ONCE = DecisionRule()
"""One look at all items, with the whole error to spend."""


def judge_pairs(tasks: Sequence[TaskPairs], policy: AccuracyPolicy, rule: DecisionRule = AT_ONCE) -> Judgement:
    """Judge a candidate beside its baseline, at one look.

    Args:
        tasks: The scores of both, paired.
        policy: Margins, confidence and smallest sample.
        rule: How the look decides.

    Returns:
        GO, NO_GO, INCONCLUSIVE or ANOMALOUS, with the pooled loss first in the evidence, then each task's.
    """
    alpha = 1.0 - policy.confidence
    comparison = bound_losses(tasks, 1.0 - rule.level(alpha), 1.0 - rule.harm_level(alpha))
    enough = comparison.pooled.pairs >= policy.minimum_items
    verdict = _pooled_verdict(comparison.pooled, policy) if enough else Verdict.INCONCLUSIVE
    pooled = _evidence(comparison.pooled, policy.margin, policy, verdict)
    verdicts = _task_verdicts(tasks, comparison.tasks, policy, rule) if enough else {}
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
    tasks: Collection[str] | None = None,
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
    comparison = compare(baseline, candidate, policy.confidence, tasks, asked, scoring=scoring)
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
    if -pooled.loss.upper > ANOMALOUS_GAIN:
        return Verdict.ANOMALOUS
    if pooled.loss.lower > policy.margin:
        return Verdict.NO_GO
    return Verdict.GO if _may_pass(pooled, policy.margin) else Verdict.INCONCLUSIVE


def _task_verdicts(
    tasks: Sequence[TaskPairs],
    compared: Sequence[PairedAccuracy],
    policy: AccuracyPolicy,
    rule: DecisionRule,
) -> dict[str, Verdict]:
    samples = [task.sample if task.scores else None for task in tasks]
    harm = [SCORE_TEST.p_value(sample, policy.task_margin) if sample else 1.0 for sample in samples]
    luck = [SCORE_TEST.p_value(sample.mirrored(), ANOMALOUS_GAIN) if sample else 1.0 for sample in samples]
    alpha = 1.0 - policy.confidence
    harmed, lucky = _rejected(harm, alpha, rule.harm_level), _rejected(luck, alpha, rule.level)
    verdicts = {}
    for number, task in enumerate(compared):
        if number in lucky:
            verdicts[task.name] = Verdict.ANOMALOUS
        elif number in harmed:
            verdicts[task.name] = Verdict.NO_GO
        else:
            verdicts[task.name] = Verdict.GO if _may_pass(task, policy.task_margin) else Verdict.INCONCLUSIVE
    return verdicts


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
    return f"{flips} {_more_items(part, margin, policy)}" if verdict is Verdict.INCONCLUSIVE else flips


def _worst_parts(part: PairedAccuracy) -> str:
    """Where a group lost most, for information: its small tasks are not judged by themselves."""
    measured = [(own.loss.estimate, own) for own in part.parts if own.loss is not None]
    worst = sorted(measured, key=lambda one: (-one[0], one[1].name))[:_WORST_PARTS]
    told = ", ".join(f"{own.name} {100 * loss:+.1f} ({own.pairs} items)" for loss, own in worst)
    return f" Largest losses of its {len(part.parts)} tasks, in points: {told}." if told else ""


def _more_items(part: PairedAccuracy, margin: float, policy: AccuracyPolicy) -> str:
    estimate = part.loss.estimate if part.loss else 0.0
    if part.clusters is not None and part.loss is not None and part.loss.upper >= 1.0:
        return f"Fewer than {ENOUGH_CLUSTERS} independent clusters decide nothing."
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
