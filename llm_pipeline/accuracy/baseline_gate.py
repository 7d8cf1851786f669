"""The baseline gate: is the unquantized model itself what it should be?

    judgement = judge_baseline(read_items(baseline_dir), release.baseline.expected, groups)

Every other accuracy gate compares with the baseline, so a damaged source passes all of them: it damages baseline and
candidate alike. Here each task is judged by what is known without another run of the model:

* Its expected range, where the release config states one: ANOMALOUS when the confidence interval of the score does
  not meet the range.
* Guessing, always: GO when the score is above what a guesser gets; ANOMALOUS when it is shown to be at most a tenth
  of the way from a guesser to a model that is always right.
* The release in production, where no range is stated: ANOMALOUS when the same items show a loss of more than
  `LOSS_SINCE_PRODUCTION`. There is no limit on what another revision may gain.

What is between is INCONCLUSIVE, and so is a range that is judged by fewer than `FEWEST_ITEMS` items. Clusters divide
the counts by their design effect, as in the other gates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.accuracy.evaluation import PLAIN, Scoring
from llm_pipeline.accuracy.paired import TaskPairs, pair_items, pool
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.config.release import ExpectedScore
from llm_pipeline.statistics.intervals import Bounds, binomial_tail, clopper_pearson_bounds, critical_value
from llm_pipeline.statistics.losses import LossSample, group_numbers
from llm_pipeline.statistics.score_test import SCORE_TEST

CONFIDENCE = 0.99
"""Of each one-sided bound: a model on the very edge of its range is called ANOMALOUS once in a hundred times."""
GUESSING_LEVEL = 0.001
"""A model that only guesses passes one task once in a thousand times."""
LITTLE_ABOVE_GUESSING = 0.1
"""Of the way from a guesser's score to 1: a model that gets no further says nothing about quantization."""
LOSS_SINCE_PRODUCTION = 0.05
"""Loss against the model in production, a fraction, that another revision may have for reasons of its own."""
FEWEST_ITEMS = 30
"""Fewer independent items say nothing about a range: their interval meets almost every one."""


@dataclass(frozen=True)
class TaskScores:
    """The baseline's items of one task, or of a group of tasks that the release config names instead of them.

    Attributes:
        name: The task or group.
        items: What was asked.
        by_task: Each task of the group counts alike, however many items it has.
    """

    name: str
    items: tuple[ScoredItem, ...]
    by_task: bool = False

    @cached_property
    def scored(self) -> tuple[ScoredItem, ...]:
        """Those that have a score."""
        return tuple(item for item in self.items if item.score is not None and math.isfinite(item.score))

    @cached_property
    def sample(self) -> LossSample:
        """The scores as a sample; clusters of two tasks are never the same."""
        scores = np.array([item.score for item in self.scored], dtype=float)
        clusters = [item.cluster and f"{item.task}\0{item.cluster}" for item in self.scored]
        graded = not bool(np.isin(scores, (0.0, 1.0)).all())
        return LossSample(scores, group_numbers(clusters), graded, weights=self.weights)

    @cached_property
    def weights(self) -> NDArray[np.float64] | None:
        """What each scored item counts, 1 on average; None for all alike."""
        sizes = Counter(item.task for item in self.scored)
        if not self.by_task or len(set(sizes.values())) <= 1:
            return None
        return np.array([len(self.scored) / len(sizes) / sizes[item.task] for item in self.scored])

    @property
    def is_share(self) -> bool:
        """Whether every score is between 0 and 1, as that of right and wrong answers is."""
        return all(0.0 <= (item.score or 0.0) <= 1.0 for item in self.scored)

    @cached_property
    def chance(self) -> float | None:
        """What guessing scores on these items, on average; None where that is not known."""
        known = [item.chance for item in self.scored if item.chance is not None]
        if not self.is_share or not known or len(known) < len(self.scored):
            return None
        return float(np.average(known, weights=self.weights))

    @cached_property
    def bounds(self) -> Bounds:
        """The mean score between its one-sided bounds: exact for right and wrong answers, Student's t for others."""
        sample = self.sample
        if sample.independent <= 1.0:
            return Bounds(sample.mean, 0.0, 1.0) if self.is_share else Bounds(sample.mean, -math.inf, math.inf)
        if not sample.graded:
            degrees = math.inf if sample.groups is None else sample.independent - 1.0
            return clopper_pearson_bounds(*_counts(sample), CONFIDENCE, degrees)
        reach = critical_value(CONFIDENCE, sample.independent - 1.0) * math.sqrt(sample.variance / (sample.pairs - 1.0))
        return Bounds(sample.mean, sample.mean - reach, sample.mean + reach)


def judge_baseline(
    items: Sequence[ScoredItem],
    expected: Mapping[str, ExpectedScore],
    groups: Mapping[str, Sequence[str]],
    before: Sequence[ScoredItem] = (),
    scoring: Scoring = PLAIN,
) -> Judgement:
    """Judge the baseline by itself.

    Args:
        items: Its items.
        expected: The range of its score, by task or group.
        groups: Tasks of the items by the group that the release config names instead of them.
        before: The baseline's items of the release in production; empty for none.
        scoring: Scales of the scores; a loss since then is a share of its task's scale.

    Returns:
        GO, INCONCLUSIVE or ANOMALOUS, with the facts of each task.
    """
    tasks = _tasks(items, groups, {group.name for group in scoring.groups if group.weighting == "tasks"})
    facts = [fact for task in tasks for fact in _facts(task, expected.get(task.name), before, scoring)]
    unasked = sorted(expected.keys() - {task.name for task in tasks})
    facts += [_nothing(f"score, {name}", "No item was asked.") for name in unasked]
    if not tasks:
        facts.append(_nothing("tasks scored", "No task was evaluated."))
    judgement = judge("", facts)
    return judgement.model_copy(update={"summary": _summary(judgement, tasks, expected)})


def _tasks(
    items: Sequence[ScoredItem], groups: Mapping[str, Sequence[str]], by_task: Collection[str]
) -> list[TaskScores]:
    """The items by what the release config calls their task."""
    names = {task: group for group, tasks in groups.items() for task in tasks}
    by_name: dict[str, list[ScoredItem]] = {}
    for item in items:
        by_name.setdefault(names.get(item.task, item.task), []).append(item)
    return [TaskScores(name, tuple(own), name in by_task) for name, own in sorted(by_name.items())]


def _facts(
    task: TaskScores, expected: ExpectedScore | None, before: Sequence[ScoredItem], scoring: Scoring
) -> Iterator[Evidence]:
    if unscored := len(task.items) - len(task.scored):
        yield _nothing(f"items without a score, {task.name}", f"{unscored} of {len(task.items)}.")
    if not task.scored:
        return
    facts = [_expected_fact(task, expected)] if expected else []
    if task.chance is not None:
        facts.append(_guessing_fact(task, task.chance))
    if expected is None and (since := _loss_since(task, before, scoring)) is not None:
        facts.append(since)
    yield from facts
    if not facts:
        why = f"The score of a guesser is not known here: state baseline.expected for {task.name}."
        yield _nothing(f"score, {task.name}", why)


def _expected_fact(task: TaskScores, expected: ExpectedScore) -> Evidence:
    bounds, detail = task.bounds, f"Expected {_range(expected)} ({expected.source})."
    limit = expected.minimum
    if task.sample.independent < FEWEST_ITEMS:
        verdict = Verdict.INCONCLUSIVE
        detail += f" Too few items to decide: {task.sample.independent:g} independent ones, of {FEWEST_ITEMS} needed."
    elif bounds.upper < expected.minimum:
        verdict = Verdict.ANOMALOUS
        detail += " The source is damaged, or the range was measured with other prompts or settings."
    elif bounds.lower > expected.maximum:
        verdict, limit = Verdict.ANOMALOUS, expected.maximum
        detail += " Answers leaked, this is another model, or the range was measured with other prompts or settings."
    else:
        verdict = Verdict.GO
    return _fact(f"score, {task.name}", verdict, task, limit, detail)


def _guessing_fact(task: TaskScores, chance: float) -> Evidence:
    p_value = guessing_p_value(task, chance)
    little = chance + LITTLE_ABOVE_GUESSING * (1.0 - chance)
    detail = f"Guessing scores {_percent(chance)}; p = {p_value:.2g}."
    if p_value < GUESSING_LEVEL:
        verdict = Verdict.GO
    elif task.bounds.upper < little:
        verdict = Verdict.ANOMALOUS
        detail += (
            " The model only guesses: the source is damaged, or the task is too hard for it and cannot show a loss."
        )
    else:
        verdict = Verdict.INCONCLUSIVE
        detail += " More items would decide; if the task is too hard for this model, leave it out."
    return _fact(f"better than guessing, {task.name}", verdict, task, chance, detail)


def guessing_p_value(task: TaskScores, chance: float) -> float:
    """How often a guesser scores as much as this or more; an upper bound.

    Answers of a guesser are independent, each with a chance of its own, so what it gets right has a Poisson binomial
    distribution. Above its mean by one or more its tail is no heavier than that of the binomial distribution with the
    mean chance (W. Hoeffding, On the distribution of the number of successes in independent trials, Annals of
    Mathematical Statistics 27 (1956) 713-721, theorem 5); nearer to it no level is met. Clusters divide the counts by
    their design effect (J. N. K. Rao and A. J. Scott, Biometrics 48 (1992) 577-585).
    """
    return binomial_tail(*_counts(task.sample), chance)


def _counts(sample: LossSample) -> tuple[float, float]:
    """What was scored, and of how many items, as if they were independent."""
    return float(sample.counted.sum()) / sample.design_effect, sample.pairs / sample.design_effect


def _loss_since(task: TaskScores, before: Sequence[ScoredItem], scoring: Scoring) -> Evidence | None:
    """The loss against the model in production, on the same items; None if they were scored with other settings."""
    pairs = _paired(task, before, scoring)
    if pairs is None or pairs.sample.independent < FEWEST_ITEMS:
        return None
    sample = pairs.sample
    bounds = SCORE_TEST.bounds(sample, CONFIDENCE)
    lost = bounds.lower > LOSS_SINCE_PRODUCTION
    detail = f"{sample.lost:g} lost, {sample.gained:g} gained against the baseline of the release in production."
    if lost:
        detail += f" If this revision is meant to score less, state baseline.expected for {task.name}."
    return Evidence(
        name=f"loss since production, {task.name}",
        verdict=Verdict.ANOMALOUS if lost else Verdict.GO,
        measured=bounds.estimate,
        lower=bounds.lower,
        upper=bounds.upper,
        limit=LOSS_SINCE_PRODUCTION,
        unit="fraction",
        samples=len(pairs.scores),
        detail=detail,
    )


def _paired(task: TaskScores, before: Sequence[ScoredItem], scoring: Scoring) -> TaskPairs | None:
    names = {item.task for item in task.items}
    earlier = [item for item in before if item.task in names]
    asked = {(item.task, item.item_id) for item in earlier}
    try:
        now = [item for item in task.items if (item.task, item.item_id) in asked]
        paired = pair_items(earlier, now, names, asked, Scoring(metrics=scoring.metrics))
    except IntegrityError:  # other questions, or another scale: nothing to compare
        return None
    pooled = pool(paired)
    return pooled if pooled.scores else None


def _fact(name: str, verdict: Verdict, task: TaskScores, limit: float, detail: str) -> Evidence:
    bounds = task.bounds
    return Evidence(
        name=name,
        verdict=verdict,
        measured=bounds.estimate,
        lower=bounds.lower if math.isfinite(bounds.lower) else None,
        upper=bounds.upper if math.isfinite(bounds.upper) else None,
        limit=limit,
        unit="fraction" if task.is_share else "points",
        samples=len(task.scored),
        detail=detail,
    )


def _nothing(name: str, detail: str) -> Evidence:
    return Evidence(name=name, verdict=Verdict.INCONCLUSIVE, detail=detail)


_OPENINGS = {
    Verdict.GO: "The baseline is sound",
    Verdict.INCONCLUSIVE: "The baseline is not shown to be sound",
    Verdict.ANOMALOUS: "The baseline itself is wrong, and nothing can be compared with it",
}


def _summary(judgement: Judgement, tasks: Sequence[TaskScores], expected: Mapping[str, ExpectedScore]) -> str:
    stopped = [fact for fact in judgement.evidence if fact.verdict is not Verdict.GO]
    if stopped:
        reasons = [_in_words(fact) for fact in stopped if fact.verdict is judgement.verdict]
        return f"{_OPENINGS[judgement.verdict]}: {'; '.join(reasons)}"
    stated = [task.name for task in tasks if task.name in expected]
    others = [task.name for task in tasks if task.name not in expected]
    parts = [f"as expected on {', '.join(stated)}"] if stated else []
    parts += [f"better than guessing on {', '.join(others)}, for which no range is stated"] if others else []
    return f"{_OPENINGS[judgement.verdict]}: {'; '.join(parts)}."


def _in_words(fact: Evidence) -> str:
    measured = "" if fact.measured is None else f"{_figure(fact.measured, fact.unit)}. "
    return f"{fact.name}: {measured}{fact.detail}"


def _figure(value: float, unit: str) -> str:
    return _percent(value) if unit == "fraction" else f"{value:.4g}"


def _range(expected: ExpectedScore) -> str:
    if expected.maximum > 1.0:
        return f"{expected.minimum:g} to {expected.maximum:g}"
    return f"{_percent(expected.minimum)} to {_percent(expected.maximum)}"


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"
