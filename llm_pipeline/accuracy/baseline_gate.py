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

What is between is INCONCLUSIVE, and so is a range that is judged by fewer than `FEWEST_ITEMS` items, and a task whose
answers often ended by length. Clusters divide the counts by their design effect, as in the accuracy gate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

from llm_pipeline.accuracy.evaluation import Bounds
from llm_pipeline.accuracy.gate import CUT_ADVICE, LossSample, bounded_fact, join, pair_items, told
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.config.release import ExpectedScore
from llm_pipeline.statistics.intervals import clopper_pearson_upper, critical_value

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
    """The baseline's items of one task, or of a group of tasks that the release config names instead of them."""

    name: str
    items: tuple[ScoredItem, ...]

    @cached_property
    def scored(self) -> tuple[ScoredItem, ...]:
        """Those that have a score."""
        return tuple(item for item in self.items if item.score is not None)

    @cached_property
    def sample(self) -> LossSample:
        """The scores as counts; clusters of two tasks are never the same."""
        scores = np.array([item.score for item in self.scored], dtype=float)
        return LossSample.of(scores, [item.cluster and f"{item.task}\0{item.cluster}" for item in self.scored])

    @cached_property
    def chance(self) -> float | None:
        """What guessing scores on these items, on average; None where that is not known."""
        known = [item.chance for item in self.scored if item.chance is not None]
        return sum(known) / len(known) if known and len(known) == len(self.scored) else None

    @cached_property
    def bounds(self) -> Bounds:
        """The mean score between its one-sided bounds, exact for right and wrong answers, wide for graded ones."""
        score, trials = self.sample.mean, self.sample.pairs
        level = NormalDist().cdf(critical_value(CONFIDENCE, self.sample.degrees))
        lower = 1.0 - clopper_pearson_upper((1.0 - score) * trials, trials, level)
        return Bounds(score, lower, clopper_pearson_upper(score * trials, trials, level))

    def guessing_p_value(self, chance: float) -> float:
        """How often a guesser scores as much as this or more; an upper bound.

        Answers of a guesser are independent, each with a chance of its own, so what it gets right has a Poisson
        binomial distribution. Above its mean by one or more its tail is no heavier than that of the binomial
        distribution with the mean chance (W. Hoeffding, Annals of Mathematical Statistics 27 (1956) 713-721, theorem
        5); nearer to it no level is met.
        """
        from scipy import special

        right, items = self.sample.mean * self.sample.pairs, self.sample.pairs
        return 1.0 if right <= 0.0 else float(special.betainc(right, items - right + 1.0, chance))


def judge_baseline(
    items: Sequence[ScoredItem],
    expected: Mapping[str, ExpectedScore],
    groups: Mapping[str, Sequence[str]],
    before: Sequence[ScoredItem] = (),
    *,
    maximum_cut_share: float = 0.02,
) -> Judgement:
    """Judge the baseline by itself.

    Args:
        items: Its items.
        expected: The range of its score, by task or group.
        groups: Tasks of the items by the group that the release config names instead of them.
        before: The baseline's items of the release in production; empty for none.
        maximum_cut_share: Share of a task's answers that may end by length.

    Returns:
        GO, INCONCLUSIVE or ANOMALOUS, with the facts of each task.
    """
    names = {task: group for group, tasks in groups.items() for task in tasks}
    by_name: dict[str, list[ScoredItem]] = {}
    for item in items:
        by_name.setdefault(names.get(item.task, item.task), []).append(item)
    tasks = [TaskScores(name, tuple(own)) for name, own in sorted(by_name.items())]
    facts = [fact for task in tasks for fact in _facts(task, expected.get(task.name), before, maximum_cut_share)]
    facts += [_nothing(f"score, {name}", "No item was asked.") for name in sorted(expected.keys() - by_name.keys())]
    judgement = judge("", facts)
    return judgement.model_copy(update={"summary": told(judgement, _OPENINGS, _in_words)})


def _facts(
    task: TaskScores, expected: ExpectedScore | None, before: Sequence[ScoredItem], maximum_cut_share: float
) -> Iterator[Evidence]:
    if unscored := len(task.items) - len(task.scored):
        yield _nothing(f"items without a score, {task.name}", f"{unscored} of {len(task.items)}.")
    cut = sum(item.cut for item in task.items)
    if cut > maximum_cut_share * len(task.items):
        detail = f"{cut} of {len(task.items)} answers, more than {_percent(maximum_cut_share)}: {CUT_ADVICE}."
        yield _nothing(f"answers that ended by length, {task.name}", detail)
    if not task.scored:
        return
    since = None if expected else _loss_since(task, before)
    if expected:
        yield _expected_fact(task, expected)
    if task.chance is not None:
        yield _guessing_fact(task, task.chance)
    if since:
        yield since
    if not expected and task.chance is None and not since:
        why = f"The score of a guesser is not known here: state baseline.expected for {task.name}."
        yield _nothing(f"score, {task.name}", why)


def _expected_fact(task: TaskScores, expected: ExpectedScore) -> Evidence:
    bounds, limit, verdict = task.bounds, expected.minimum, Verdict.GO
    detail = f"Expected {_percent(expected.minimum)} to {_percent(expected.maximum)} ({expected.source})."
    if task.sample.pairs < FEWEST_ITEMS:
        verdict = Verdict.INCONCLUSIVE
        detail += f" Too few items to decide: {task.sample.pairs:.3g} independent ones, of {FEWEST_ITEMS} needed."
    elif bounds.upper < expected.minimum:
        verdict = Verdict.ANOMALOUS
        detail += " The source is damaged, or the range was measured with other prompts or settings."
    elif bounds.lower > expected.maximum:
        verdict, limit = Verdict.ANOMALOUS, expected.maximum
        detail += " Answers leaked, this is another model, or the range was measured with other prompts or settings."
    name, items = f"score, {task.name}", len(task.scored)
    return bounded_fact(name, verdict, bounds, limit, items, detail, confidence=CONFIDENCE)


def _guessing_fact(task: TaskScores, chance: float) -> Evidence:
    p_value = task.guessing_p_value(chance)
    detail, verdict = f"Guessing scores {_percent(chance)}; p = {p_value:.2g}.", Verdict.GO
    if p_value >= GUESSING_LEVEL and task.bounds.upper < chance + LITTLE_ABOVE_GUESSING * (1.0 - chance):
        verdict = Verdict.ANOMALOUS
        detail += (
            " The model only guesses: the source is damaged, or the task is too hard for it and cannot show a loss."
        )
    elif p_value >= GUESSING_LEVEL:
        verdict = Verdict.INCONCLUSIVE
        detail += " More items would decide; if the task is too hard for this model, leave it out."
    name, items = f"better than guessing, {task.name}", len(task.scored)
    return bounded_fact(name, verdict, task.bounds, chance, items, detail, confidence=CONFIDENCE)


def _loss_since(task: TaskScores, before: Sequence[ScoredItem]) -> Evidence | None:
    """The loss against the model in production, on the same items; None if they were scored with other settings."""
    places = {(item.task, item.item_id) for item in task.items}
    earlier = [item for item in before if (item.task, item.item_id) in places]
    try:
        pairs = join(task.name, pair_items(earlier, task.items))
    except IntegrityError:  # other questions: nothing to compare
        return None
    if not pairs.items or pairs.sample.pairs < FEWEST_ITEMS:
        return None
    sample, error = pairs.sample, 1.0 - CONFIDENCE
    bounds = Bounds(sample.mean, sample.lower(error), sample.upper(error))
    lost = bounds.lower > LOSS_SINCE_PRODUCTION
    detail = "Against the baseline of the release in production."
    if lost:
        detail += f" If this revision is meant to score less, state baseline.expected for {task.name}."
    verdict = Verdict.ANOMALOUS if lost else Verdict.GO
    name, items = f"loss since production, {task.name}", len(pairs.items)
    return bounded_fact(
        name, verdict, bounds, LOSS_SINCE_PRODUCTION, items, detail, confidence=CONFIDENCE, unit="fraction lost"
    )


def _nothing(name: str, detail: str) -> Evidence:
    return Evidence(name=name, verdict=Verdict.INCONCLUSIVE, detail=detail)


_OPENINGS = {
    Verdict.GO: "The baseline is sound",
    Verdict.INCONCLUSIVE: "The baseline is not shown to be sound",
    Verdict.ANOMALOUS: "The baseline itself is wrong, and nothing can be compared with it",
}


def _in_words(fact: Evidence) -> str:
    score = "" if fact.measured is None else f"{_percent(fact.measured)}. "
    return f"{fact.name}: {score}{fact.detail}"


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"
