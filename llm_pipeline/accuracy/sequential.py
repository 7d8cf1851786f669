"""The accuracy gate, look by look: stop as soon as the answer is known, or cannot become known any more.

    plan = plan_looks(1319, policy)
    for look, size in enumerate(plan.sizes, start=1):
        items = ask(order[:size])
        if judgement := judge_look(baseline, items, plan, look, policy):
            break

Nothing is remembered between looks: whoever resumes with the items asked so far gets the same answer. Passing and
failing each spend the policy's error over the looks (`spending`). Pooled and task by task a look tests at the level
spent there; GO needs all of them at one look, so no correction for several tasks is due.

A look also stops when GO has become improbable. That never makes a pass likelier (it is not binding: one may go on),
and it is no proof of harm: NO_GO is said only where the loss is shown to be beyond the margin, else INCONCLUSIVE.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from statistics import NormalDist

from llm_pipeline.accuracy.evaluation import PLAIN, Scoring
from llm_pipeline.accuracy.gate import AT_ONCE, DecisionRule, judge_pairs
from llm_pipeline.accuracy.looks import LookPlan
from llm_pipeline.accuracy.paired import TaskPairs, pair_items, pool
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.statistics.losses import LossSample
from llm_pipeline.statistics.score_test import SCORE_TEST
from llm_pipeline.statistics.spending import IMPROBABLE, early, late, nominal_level


def judge_look(
    baseline: Sequence[ScoredItem],
    candidate: Sequence[ScoredItem],
    plan: LookPlan,
    look: int,
    policy: AccuracyPolicy,
    *,
    tasks: Iterable[str] | None = None,
    scoring: Scoring = PLAIN,
) -> Judgement | None:
    """Judge the items that were scored up to one look.

    Args:
        baseline: Items of the unquantized model; more than were asked of the candidate is fine.
        candidate: Items asked so far, in the order asked; what was asked beyond the look's size is left out.
        plan: The looks, as planned before the first item was asked.
        look: Which look this is; the first is 1.
        policy: Margins, confidence and smallest sample.
        tasks: Tasks that must be judged; None for every task that either side has.
        scoring: Scales of the scores, and groups of tasks that are judged as one.

    Returns:
        The judgement, or None to go on; never None at the last look.

    Raises:
        IntegrityError: As `pair_items`.
        ValueError: The plan has no such look.
    """
    if not 1 <= look <= len(plan.sizes):
        raise ValueError(f"look {look} of {len(plan.sizes)}")
    size = plan.sizes[look - 1]
    seen = candidate[:size]
    pairs = pair_items(baseline, seen, tasks, {(item.task, item.item_id) for item in seen}, scoring)
    judgement = judge_pairs(pairs, policy, decision_rule(plan, look))
    if len(seen) < size:
        judgement = _with(judgement, _shortfall(len(seen), size))
    if look == len(plan.sizes) or judgement.verdict is not Verdict.INCONCLUSIVE:
        return _told(judgement, plan, look)
    reason = _futility(pool(pairs), pairs, plan, look, policy)
    if reason is None:
        return None
    stopped = _with(_told(judgement, plan, look), reason)
    return stopped.model_copy(update={"summary": f"{stopped.summary} GO had become improbable."})


def decision_rule(plan: LookPlan, look: int) -> DecisionRule:
    """What a look of a plan decides by."""
    if len(plan.sizes) == 1:
        return AT_ONCE
    seen = plan.shares[:look]
    return DecisionRule(level=partial(nominal_level, seen, late), harm_level=partial(nominal_level, seen, early))


def chance_of_go(sample: LossSample, margin: float, plan: LookPlan, look: int, confidence: float) -> float:
    """Predictive probability that the upper bound is below the margin at the last look.

    The last bound is the one that the sample, grown to its final size with the same share of flips, would have; the
    loss still to come is as uncertain as what was seen leaves it (D. J. Spiegelhalter, L. S. Freedman and P. R.
    Blackburn, Controlled Clinical Trials 7 (1986) 8-17).
    """
    share = plan.shares[look - 1]
    rule = decision_rule(plan, len(plan.sizes))
    at_the_end = sample.grown((1.0 + 1.0 / sample.pairs) / share)  # a task's share may be one item off the plan's
    final = SCORE_TEST.bounds(at_the_end, 1.0 - rule.level(1.0 - confidence))
    spread = math.sqrt(sample.variance / sample.pairs * (1.0 - share))
    if spread == 0.0:
        return float(final.upper < margin)
    return NormalDist().cdf((margin - final.upper) / spread)


def _futility(
    pooled: TaskPairs, tasks: Sequence[TaskPairs], plan: LookPlan, look: int, policy: AccuracyPolicy
) -> Evidence | None:
    for part, margin in [(pooled, policy.margin), *((task, policy.task_margin) for task in tasks)]:
        if not part.scores and not part.unpaired:
            continue  # nothing was asked of this task yet
        possible = part.scores and not part.unpaired
        chance = chance_of_go(part.sample, margin, plan, look, policy.confidence) if possible else 0.0
        if chance <= IMPROBABLE:
            return Evidence(
                name=f"chance of GO at the last look, {part.name}",
                verdict=Verdict.INCONCLUSIVE,
                measured=chance,
                limit=IMPROBABLE,
                unit="fraction",
                samples=len(part.scores),
                detail="Stopped because GO has become improbable; that alone does not show a loss beyond the margin.",
            )
    return None


def _told(judgement: Judgement, plan: LookPlan, look: int) -> Judgement:
    if len(plan.sizes) == 1:
        return judgement
    size, items = plan.sizes[look - 1], plan.items
    where = f"Stopped at look {look} of {len(plan.sizes)}, {size:,} of {items:,} items"
    fact = Evidence(
        name="items asked",
        verdict=Verdict.GO,
        measured=float(size),
        limit=float(items),
        unit="items",
        samples=size,
        detail=f"{where}.",
    )
    told = _with(judgement, fact)
    return told.model_copy(update={"summary": f"{judgement.summary} {where}."})


def _with(judgement: Judgement, fact: Evidence) -> Judgement:
    verdict = judgement.verdict if fact.verdict is Verdict.GO else Verdict.INCONCLUSIVE
    if judgement.verdict in (Verdict.NO_GO, Verdict.ANOMALOUS):
        verdict = judgement.verdict
    return judgement.model_copy(update={"verdict": verdict, "evidence": (*judgement.evidence, fact)})


def _shortfall(seen: int, size: int) -> Evidence:
    return Evidence(
        name="items without an answer",
        verdict=Verdict.INCONCLUSIVE,
        measured=float(size - seen),
        limit=0.0,
        unit="items",
        samples=seen,
        detail=f"{seen} of {size} items were answered.",
    )
