"""The accuracy gate: is a quantized model provably not worse than its baseline by more than the margin?

    judgement = judge_accuracy(read_items(baseline_dir), read_items(candidate_dir), policy.accuracy)
    log.info(comparison_table(baseline, candidate, policy.accuracy))

GO needs the upper bound of the loss below the margin, pooled and for every task: an intersection-union test, so no
correction for several tasks is due (Berger 1982). NO_GO needs the lower bound above a margin; over tasks the claim
"some task lost too much" is corrected by Holm's method. What is between is INCONCLUSIVE and says how many items
would decide. Nothing is rounded before it is compared, and a bound that equals its limit passes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist

from llm_pipeline.accuracy.intervals import FEW_CHANGES, holm, items_to_decide, tango_statistic
from llm_pipeline.accuracy.items import ScoredItem
from llm_pipeline.accuracy.paired import Comparison, PairedAccuracy, compare
from llm_pipeline.accuracy.table import format_comparison
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.verdict import Evidence, Judgement, Verdict, judge


def judge_accuracy(
    baseline: Sequence[ScoredItem],
    candidate: Sequence[ScoredItem],
    policy: AccuracyPolicy,
    tasks: Iterable[str] | None = None,
) -> Judgement:
    """Judge a candidate's items against its baseline's.

    Args:
        baseline: Items of the unquantized model.
        candidate: Items of the model that is judged.
        policy: Margins, confidence and smallest sample.
        tasks: Tasks that must be judged (the served ones, say); None for every task that either side has.

    Returns:
        GO, NO_GO, INCONCLUSIVE or ANOMALOUS, with the pooled loss first in the evidence, then each task's.

    Raises:
        IntegrityError: The two evaluations asked different questions, hold an item twice, or score outside 0 to 1.
    """
    return judge_comparison(compare(baseline, candidate, policy.confidence, tasks), policy)


def comparison_table(
    baseline: Sequence[ScoredItem],
    candidate: Sequence[ScoredItem],
    policy: AccuracyPolicy,
    tasks: Iterable[str] | None = None,
) -> str:
    """The comparison as an aligned table for a task's log; starts with a line break.

    Raises:
        IntegrityError: As `judge_accuracy`.
    """
    return format_comparison(compare(baseline, candidate, policy.confidence, tasks), policy)


def judge_comparison(comparison: Comparison, policy: AccuracyPolicy) -> Judgement:
    """Judge a comparison that was made already.

    Raises:
        ValueError: The comparison was made at another confidence than the policy's.
    """
    if comparison.confidence != policy.confidence:
        raise ValueError(f"compared at confidence {comparison.confidence}, the policy says {policy.confidence}")
    enough = comparison.pooled.pairs >= policy.minimum_items
    verdict = _pooled_verdict(comparison.pooled, policy) if enough else Verdict.INCONCLUSIVE
    pooled = _evidence(comparison.pooled, policy.margin, policy, verdict)
    verdicts = _task_verdicts(comparison.tasks, policy) if enough else {}
    facts = [
        _evidence(task, policy.task_margin, policy, verdicts.get(task.name, Verdict.INCONCLUSIVE))
        for task in comparison.tasks
    ]
    judgement = judge("", [pooled, *_completeness(comparison, policy), *facts])
    return judgement.model_copy(update={"summary": _summary(judgement, comparison, policy)})


def _pooled_verdict(pooled: PairedAccuracy, policy: AccuracyPolicy) -> Verdict:
    if pooled.loss is None:
        return Verdict.INCONCLUSIVE
    if -pooled.loss.upper > policy.anomalous_gain:
        return Verdict.ANOMALOUS
    if pooled.loss.lower > policy.margin:
        return Verdict.NO_GO
    return Verdict.GO if _may_pass(pooled, policy.margin) else Verdict.INCONCLUSIVE


def _task_verdicts(tasks: Sequence[PairedAccuracy], policy: AccuracyPolicy) -> dict[str, Verdict]:
    alpha = 1.0 - policy.confidence
    harm = holm([_p_loss_beyond(task, policy.task_margin) for task in tasks])
    luck = holm([_p_loss_beyond(_mirrored(task), policy.anomalous_gain) for task in tasks])
    verdicts = {}
    for task, p_harm, p_luck in zip(tasks, harm, luck, strict=True):
        if p_luck < alpha:
            verdicts[task.name] = Verdict.ANOMALOUS
        elif p_harm < alpha:
            verdicts[task.name] = Verdict.NO_GO
        else:
            verdicts[task.name] = Verdict.GO if _may_pass(task, policy.task_margin) else Verdict.INCONCLUSIVE
    return verdicts


def _may_pass(part: PairedAccuracy, margin: float) -> bool:
    return part.loss is not None and part.loss.upper < margin and not _is_too_weak(part, margin)


def _is_too_weak(part: PairedAccuracy, margin: float) -> bool:
    """A baseline that scores no more than the margin cannot lose more than the margin: its pass would say nothing."""
    return part.baseline is not None and part.baseline.estimate <= margin


def _p_loss_beyond(part: PairedAccuracy, limit: float) -> float:
    """P-value of "the loss is at most `limit`": small when the loss is surely beyond."""
    if part.loss is None or limit >= 1.0:
        return 1.0
    if not part.graded:
        return NormalDist().cdf(-tango_statistic(part.lost, part.gained, part.pairs, limit))
    if part.flips < FEW_CHANGES:
        return 1.0
    error = math.sqrt(part.variance / (part.pairs - 1))
    excess = part.loss.estimate - limit
    from scipy import special

    return float(special.stdtr(part.pairs - 1, -excess / error)) if error else float(excess <= 0.0)


def _mirrored(part: PairedAccuracy) -> PairedAccuracy:
    """The same comparison seen from the candidate: its gain becomes the loss."""
    if part.loss is None:
        return part
    loss = part.loss.model_copy(
        update={"estimate": -part.loss.estimate, "lower": -part.loss.upper, "upper": -part.loss.lower}
    )
    return part.model_copy(update={"loss": loss, "lost": part.gained, "gained": part.lost})


def _evidence(part: PairedAccuracy, margin: float, policy: AccuracyPolicy, verdict: Verdict) -> Evidence:
    return Evidence(
        name=f"accuracy loss, {part.name}",
        verdict=verdict,
        measured=part.loss.estimate if part.loss else None,
        lower=part.loss.lower if part.loss else None,
        upper=part.loss.upper if part.loss else None,
        limit=margin,
        unit="fraction",
        samples=part.pairs,
        detail=_detail(part, margin, policy, verdict),
    )


def _detail(part: PairedAccuracy, margin: float, policy: AccuracyPolicy, verdict: Verdict) -> str:
    if part.loss is None:
        return "No item is scored on both sides."
    flips = f"{part.lost} lost, {part.gained} gained."
    if verdict is Verdict.ANOMALOUS:
        return (
            f"{flips} Quantization does not make models this much better: look for leaked answers or a broken baseline."
        )
    if verdict is Verdict.INCONCLUSIVE and _is_too_weak(part, margin):
        return f"{flips} The baseline itself scores no more than the margin, so a loss could not show."
    return f"{flips} {_more_items(part, margin, policy)}" if verdict is Verdict.INCONCLUSIVE else flips


def _more_items(part: PairedAccuracy, margin: float, policy: AccuracyPolicy) -> str:
    estimate = part.loss.estimate if part.loss else 0.0
    needed = items_to_decide(part.variance, margin - estimate, policy.confidence)
    if needed is None:
        return "The loss sits on the limit: no number of items decides."
    more = max(needed - part.pairs, policy.minimum_items - part.pairs)
    return (
        f"About {more} more items would decide (90 % power)."
        if more > 0
        else "Decided alone, not over all tasks together."
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
    Verdict.INCONCLUSIVE: "Neither shown to be good enough nor to be too bad",
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
        f"{100 * comparison.confidence:g} % upper bound {100 * pooled.loss.upper:+.2f}, "
        f"margin {100 * policy.margin:g}, on {pooled.pairs} items of {len(comparison.tasks)} tasks."
    )
