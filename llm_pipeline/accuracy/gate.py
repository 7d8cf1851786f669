"""The accuracy gate: is a quantized model provably not worse than its baseline by more than the margin?

    asked = portions(clusters_by_task)
    for look, portion in enumerate(asked, start=1):
        items += ask(portion)
        if judged := judge_look(baseline, items, look, len(asked), policy):
            judgement, comparison = judged
            break

Items are paired by task and number; the loss of an item is what the candidate scored less, and scores are shares from
0 to 1. GO needs the upper bound of the mean loss below the margin, over all items and for every task: an
intersection-union test, so no correction for several tasks is due (Berger 1982). A group of tasks is one task. NO_GO
needs the lower bound above a margin; over tasks that claim is corrected by Holm's method. What is between is
INCONCLUSIVE. A point estimate never decides, and a bound that equals its limit passes nothing.

The gate looks at the end of each portion. Passing and failing each spend the policy's error over the looks (K. K. G.
Lan and D. L. DeMets, Biometrika 70 (1983) 659-663), so that whoever stops early errs no more often. Nothing is
remembered between looks. A look also stops when GO has become improbable; that is no proof of harm, and never makes a
pass likelier.
"""

from __future__ import annotations

import math
import random
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.accuracy.evaluation import Bounds, Comparison, PairedAccuracy
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.statistics.intervals import clopper_pearson_upper, critical_value

ItemPlace = tuple[str, int]
"""A task and the number of a document in it."""

POOLED = "all tasks"
LOOKS = 5
"""Portions that documents are cut into, and looks that a gate has, at most."""
LONG = 100
"""Characters of a text that documents do not share by chance; about twenty words."""
ENOUGH_CLUSTERS = 50
"""Of fewer clusters, one that was lost as a whole may just not have been met. Unequal ones count as fewer equal ones:
A. V. Carter, K. T. Schnepel and D. G. Steigerwald, Review of Economics and Statistics 99 (2017) 698-709."""
FEW_CHANGED_CLUSTERS = 10
"""With fewer of them nothing is known of how alike the items of a cluster are: they are taken to answer as one."""
ANOMALOUS_GAIN = 0.05
"""A gain that is shown to be beyond it: quantization does not make models better."""
FEWEST_KEPT = 0.5
"""Of the baseline's right answers: a candidate that keeps no more than that agrees with it no better than another."""
TYPICAL_FLIPS = 0.05
"""Share of items that change either way, taken while nothing is measured: 1 to 2 % for FP8, 3 to 8 % for 4 bits."""

CUT_ADVICE = (
    "raise evaluation.max_gen_toks, or close the thinking by evaluation.chat_template_arguments; where nothing is read "
    "of the end of an answer, raise the policy's maximum_cut_share"
)

_IDENTIFIER = re.compile(r"(^|[._])(id|idx|ind|index|key|uid|uuid)$", re.IGNORECASE)
_IMPROBABLE = 2.33  # the normal quantile of one per cent
_TINY, _WIDEST = 1e-300, 1.0 - 1e-12
_MOST_TOLD = 3
_NORMAL = NormalDist()


def portions(clusters: Mapping[str, Sequence[str]]) -> tuple[tuple[ItemPlace, ...], ...]:
    """Cut the documents of each task into at most five fixed portions of about equal size.

    A task's documents are cut by its name and its clusters alone, whatever other tasks there are, so that its examples
    agree wherever a portion is asked. No cluster is torn apart.

    Args:
        clusters: For each task the cluster of each document, by the document's number; an empty name is none.
    """
    cut: list[list[ItemPlace]] = [[] for _ in range(LOOKS)]
    for task, names in clusters.items():
        blocks = defaultdict[str | int, list[int]](list)
        for number, name in enumerate(names):
            blocks[name or number].append(number)
        shuffled, start = list(blocks.values()), 0
        random.Random(f"0/{task}").shuffle(shuffled)  # noqa: S311 - an order that anyone can draw again
        for block in shuffled:
            middle = (start + len(block) / 2) / len(names)
            cut[int(LOOKS * middle)] += [(task, number) for number in block]
            start += len(block)
    return tuple(tuple(sorted(places)) for places in cut if places)


def document_clusters(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """The cluster of each document of a task; an empty name is none.

    Documents that are equal but for their identifiers are one cluster, whatever their length, and so are those that
    share a text of `LONG` characters in the same field; a text that more than half of them share is an instruction,
    and joins nothing. Case and spaces do not matter. A passage that is repeated with other words is not found.
    """
    if not documents:
        return []
    equal, passages = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for number, document in enumerate(documents):
        texts = list(_texts("", document))
        equal[hash(tuple(text for text in texts if not _IDENTIFIER.search(text[0])))].append(number)
        for passage in {hash(text) for text in texts if len(text[1]) >= LONG}:
            passages[passage].append(number)
    shared = [*equal.values(), *(some for some in passages.values() if len(some) <= len(documents) / 2)]
    first = [some[0] for some in shared for _ in some]
    second = [number for some in shared for number in some]
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(first)), (first, second)), shape=(len(documents), len(documents)))
    labels = connected_components(graph, directed=False)[1]
    sizes = np.bincount(labels)
    return [f"shared text {label}" if sizes[label] > 1 else "" for label in labels]


def _texts(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every value in a document as text, with the path to it."""
    if isinstance(value, Mapping):
        for key, own in value.items():
            yield from _texts(f"{name}.{key}", own)
    elif isinstance(value, list | tuple):
        for own in value:
            yield from _texts(name, own)
    else:
        yield name, " ".join(value.split()).casefold() if isinstance(value, str) else repr(value)


@dataclass(frozen=True)
class LossSample:
    """What a candidate lost, as counts of items that were lost wholly, gained wholly, or unchanged.

    Graded losses become the counts with the same mean and the same variance, or a larger one. Clusters divide all
    counts by their design effect (J. N. K. Rao and A. J. Scott, Biometrics 48 (1992) 577-585), and make Student's
    quantile of the normal one.

    Attributes:
        lost: Items that were lost; a fraction where clusters or grades shrink it.
        gained: Items that were gained.
        pairs: All items.
        degrees: Degrees of freedom of Student's quantile.
        skewness: Third moment by second of what clusters, or graded items, lost beyond the mean, by items.
        few: There are too few clusters to bound anything.
    """

    lost: float
    gained: float
    pairs: float
    degrees: float = math.inf
    skewness: float = 0.0
    few: bool = False

    @classmethod
    def of(cls, losses: NDArray[np.float64], clusters: Sequence[str]) -> LossSample:
        """The sample of some losses from -1 to 1, at least one; an empty cluster is none."""
        numbers: dict[str | int, int] = {}
        groups = np.array([numbers.setdefault(name or number, len(numbers)) for number, name in enumerate(clusters)])
        items, count = losses.size, len(numbers)
        excess = np.bincount(groups, losses - losses.mean())
        at_worst = float((np.bincount(groups) ** 2).sum()) / items
        effect, clustered, spread = 1.0, count < items, float((excess**2).sum())
        if clustered:
            # the cluster-robust variance (E. Miller, Adding Error Bars to Evals, arXiv 2411.00640) by the plain one
            known = np.count_nonzero(np.bincount(groups, np.abs(losses))) >= FEW_CHANGED_CLUSTERS and losses.var() > 0.0
            effect = max(1.0, count / (count - 1) * spread / items / losses.var()) if known else at_worst
        leans = spread > 0.0 and (clustered or not np.isin(losses, (-1.0, 0.0, 1.0)).all())
        total = float(losses.sum())
        squares = max(float((losses**2).sum()), abs(total))
        return cls(
            lost=(squares + total) / 2 / effect,
            gained=(squares - total) / 2 / effect,
            pairs=items / effect,
            degrees=count - 1 if leans else math.inf,
            skewness=float((excess**3).sum()) / spread / items if leans else 0.0,
            few=clustered and items / at_worst < ENOUGH_CLUSTERS,
        )

    @property
    def mean(self) -> float:
        """Mean loss of an item."""
        return (self.lost - self.gained) / self.pairs

    @property
    def variance(self) -> float:
        """Variance of one item's loss."""
        return (self.lost + self.gained) / self.pairs - self.mean**2

    def upper(self, error: float) -> float:
        """One-sided upper bound of the mean loss, which the truth is beyond with a chance of `error`.

        Tango's score test inverted (`score_statistic`); where nothing was gained, Clopper and Pearson's exact bound of
        a proportion, for the score bound is a little too low there. Skewness moves it by the first-order term in the
        Edgeworth expansion of Student's t (P. Hall, Journal of the Royal Statistical Society B 54 (1992) 221-228).
        """
        if self.few:
            return 1.0
        reach = critical_value(1.0 - error, self.degrees)
        lean = max(0.0, self.skewness) * (1.0 + 2.0 * reach * reach) / 6.0
        if self.gained == 0.0:
            return min(1.0, clopper_pearson_upper(self.lost, self.pairs, _NORMAL.cdf(reach)) + lean)
        from scipy.optimize import brentq

        if score_statistic(self, _WIDEST) > -reach:
            return 1.0
        lowest = max(self.mean, -_WIDEST)  # where the statistic is 0; it falls as the assumed loss rises
        return min(1.0, float(brentq(lambda loss: score_statistic(self, loss) + reach, lowest, _WIDEST)) + lean)

    def lower(self, error: float) -> float:
        """One-sided lower bound, no higher than the exact one of the net loss, for the score test alone errs too often.

        The exact bound takes the net loss for items that were lost with none gained.
        """
        mirrored = LossSample(self.gained, self.lost, self.pairs, self.degrees, -self.skewness, self.few)
        lower, net = -mirrored.upper(error), self.lost - self.gained
        if net <= 0.0:
            return lower
        level = _NORMAL.cdf(critical_value(1.0 - error, self.degrees))
        return min(lower, 1.0 - clopper_pearson_upper(self.pairs - net, self.pairs, level))


def score_statistic(sample: LossSample, loss: float) -> float:
    """Tango's score statistic for the hypothesis that the mean loss is `loss`; positive when more was lost.

    T. Tango, Equivalence test and confidence interval for the difference in proportions for the paired-sample design,
    Statistics in Medicine 17 (1998) 891-908.
    """
    lost, gained, pairs = sample.lost, sample.gained, sample.pairs
    linear = -(lost + gained) + loss * (2.0 * pairs - lost + gained)
    root = math.sqrt(max(0.0, linear * linear + 8.0 * pairs * gained * loss * (1.0 - loss)))
    variance = pairs * (2.0 * max(0.0, (root - linear) / (4.0 * pairs)) + loss * (1.0 - loss))
    excess = lost - gained - pairs * loss
    return excess / math.sqrt(variance) if variance > 0.0 else math.copysign(math.inf, excess) if excess else 0.0


def late(alpha: float, share: float) -> float:
    """O'Brien and Fleming's type of spending: almost nothing early, so that the last look tests nearly at `alpha`."""
    return 2.0 * _NORMAL.cdf(_NORMAL.inv_cdf(alpha / 2.0) / math.sqrt(share))


def early(alpha: float, share: float) -> float:
    """Pocock's type of spending: about as much at each look, for bad models should be stopped early."""
    return alpha * math.log1p((math.e - 1.0) * share)


@lru_cache(maxsize=512)
def level_of(look: int, looks: int, spending: Callable[[float, float], float], alpha: float) -> float:
    """The one-sided error at which a look tests, so that all of some equal looks together keep `alpha`.

    The density of a random walk that no earlier boundary has stopped, on a grid (C. Jennison and B. W. Turnbull, Group
    Sequential Methods with Applications to Clinical Trials (2000), chapter 19).
    """
    step = 0.01
    grid = np.arange(-2000, 2001) * step
    kernel = np.exp(-0.5 * grid**2) * step / math.sqrt(2.0 * math.pi)
    density, spent, boundary = kernel, 0.0, math.inf
    for number in range(1, look + 1):
        if number > 1:
            going = np.clip((boundary - grid) / step + 0.5, 0.0, 1.0)
            density = np.convolve(density * going, kernel[1000:-1000], mode="same")
        beyond = np.cumsum(density[::-1])[::-1]  # at the lower edge of each cell
        target, spent = spending(alpha, number / looks) - spent, spending(alpha, number / looks)
        boundary = float(np.interp(-math.log(target + _TINY), -np.log(beyond + _TINY), grid - step / 2.0))
    return max(1e-12, _NORMAL.cdf(-boundary / math.sqrt(look)))


def items_needed(distance: float, variance: float, confidence: float, power: float = 0.9) -> int:
    """Paired items with which a loss this far from its limit is decided, with the given power.

    `(z_confidence + z_power)^2 * variance / distance^2`: at 0.95, 0.9, a margin of one point and flips of 2, 5 and 8 %,
    about 1,750, 4,300 and 6,900 for a model that lost nothing.

    Args:
        distance: From the loss to the margin; not 0.
        variance: Of one item's loss: about the share of items that change either way.
        confidence: Confidence of the gate's one-sided bound.
        power: Chance to decide.
    """
    factor = (_NORMAL.inv_cdf(confidence) + _NORMAL.inv_cdf(power)) ** 2
    without_flips = math.log(1.0 - confidence) / math.log1p(-min(abs(distance), 0.999))
    return math.ceil(max(factor * variance / distance**2, without_flips))


@dataclass(frozen=True)
class TaskPairs:
    """The items of one task or group (or of all) that are scored on both sides.

    Attributes:
        name: The task or group, or `POOLED`.
        items: Baseline's and candidate's.
        unpaired: Items that one side lacks or has no score for.
    """

    name: str
    items: tuple[tuple[ScoredItem, ScoredItem], ...]
    unpaired: int = 0

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """Baseline's and candidate's, shape (2, pairs)."""
        return np.array([[item.score for item in pair] for pair in self.items], dtype=float).reshape(-1, 2).T

    @cached_property
    def sample(self) -> LossSample:
        """The losses; clusters of two tasks are never the same."""
        clusters = [one.cluster and f"{one.task}\0{one.cluster}" for one, _ in self.items]
        return LossSample.of(self.scores[0] - self.scores[1], clusters)

    def objection(self, margin: float) -> str:
        """Why a bound below the margin proves nothing; empty where it does."""
        before, after = self.scores
        chance = float(np.mean([one.chance or 0.0 for one, _ in self.items]))
        if before.mean() - chance <= margin:
            guessing = " above guessing" if chance else ""
            return f"The baseline itself scores no more than the margin{guessing}, so a loss could not show."
        kept = float(np.minimum(before, after).sum() / before.sum())
        if kept <= FEWEST_KEPT:
            return f"The candidate keeps {100 * kept:.0f} % of what the baseline gets right, as any other model might."
        return ""


def pair_items(
    baseline: Sequence[ScoredItem],
    candidate: Sequence[ScoredItem],
    tasks: Collection[str] | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    *,
    all_asked: bool = False,
) -> tuple[TaskPairs, ...]:
    """Pair two evaluations, task by task (or group by group), sorted by name.

    An item of the candidate that the baseline lacks, or that has no score on either side, is unpaired; with
    `all_asked` also one of the baseline that the candidate lacks.

    Raises:
        IntegrityError: An item asks another question than its partner.
    """
    before, after = (defaultdict[str, dict[int, ScoredItem]](dict) for _ in range(2))
    for side, items in ((before, baseline), (after, candidate)):
        for item in items:
            side[item.task][item.item_id] = item
    judged: dict[str, TaskPairs] = {}
    for name in sorted({*before, *after} if tasks is None else tasks):
        own, other = before[name], after[name]
        shared = [(own[number], other[number]) for number in sorted(own.keys() & other.keys())]
        if strangers := [one.item_id for one, two in shared if one.fingerprint != two.fingerprint]:
            raise IntegrityError(
                f"{len(strangers)} of {len(shared)} items of task {name} ask different questions "
                f"(first: item {strangers[0]})",
                where="baseline and candidate evaluations",
                hint="evaluate both with the same dataset revision, prompt template and few-shot seed",
            )
        scored = tuple(pair for pair in shared if None not in (pair[0].score, pair[1].score))
        asked = own.keys() | other.keys() if all_asked else other.keys()
        judged[name] = TaskPairs(name, scored, len(asked) - len(scored))
    for group, members in (groups or {}).items():
        if parts := [judged.pop(name) for name in members if name in judged]:
            judged[group] = join(group, parts)
    return tuple(judged[name] for name in sorted(judged))


def join(name: str, parts: Sequence[TaskPairs]) -> TaskPairs:
    """Several tasks as one sample, in which every item counts alike; its bound is a little wide where they differ."""
    items = tuple(pair for part in parts for pair in part.items)
    return TaskPairs(name, items, sum(part.unpaired for part in parts))


def judge_look(
    baseline: Sequence[ScoredItem],
    candidate: Sequence[ScoredItem],
    look: int,
    looks: int,
    policy: AccuracyPolicy,
    *,
    tasks: Collection[str] | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Judgement, Comparison] | None:
    """Judge the items that were scored up to the end of one portion.

    Args:
        baseline: Items of the unquantized model, of all portions.
        candidate: Items of the portions asked so far, in any order.
        look: How many portions were asked.
        looks: How many there are.
        policy: Margins, confidence and smallest sample.
        tasks: Tasks that must be judged; None for every task that either side has.
        groups: Tasks that are judged as one, by the name of the group.

    Returns:
        The judgement, with the pooled loss first in the evidence, then what is missing, then each task's loss; and the
        comparison behind it. The bounds of both are wider than those of a sample of its size: they hold at all looks
        together (C. Jennison and B. W. Turnbull, Journal of the Royal Statistical Society B 51 (1989) 305-361). None to
        go on; never None at the last look.

    Raises:
        IntegrityError: As `pair_items`.
    """
    parts = pair_items(baseline, candidate, tasks, groups, all_asked=look == looks)
    pooled, alpha = join(POOLED, parts), 1.0 - policy.confidence
    enough = len(pooled.items) >= policy.minimum_items
    if not enough and look < looks:
        return None
    passing, failing = (partial(level_of, look, looks, spending) for spending in (late, early))
    compared, facts, hopeless = [], [], []
    for judged, margin in (((pooled,), policy.margin), (parts, policy.task_margin)):
        tested = judged if enough else ()
        lucky = _holm(tested, alpha, lambda sample, error: -sample.upper(passing(error)), ANOMALOUS_GAIN)
        harmed = _holm(tested, alpha, lambda sample, error: sample.lower(failing(error)), margin)
        for pairs in judged:
            part = _compared(pairs, passing(alpha), failing(alpha))
            passes = enough and part.loss is not None and part.loss.upper < margin and not pairs.objection(margin)
            verdict = Verdict.GO if passes else Verdict.INCONCLUSIVE
            verdict = Verdict.ANOMALOUS if part.name in lucky else Verdict.NO_GO if part.name in harmed else verdict
            compared.append(part)
            facts.append(_fact(pairs, part, margin, verdict, policy))
            if pairs.items and is_hopeless(pairs.sample, margin, look, looks, alpha):
                hopeless.append(pairs.name)
    judgement = judge("", [facts[0], *_gaps(parts, policy), *facts[1:]])
    where = ""
    if looks > 1:
        planned = sum(tasks is None or item.task in tasks for item in baseline)
        where = f" Stopped at look {look} of {looks}, {len(candidate):,} of {planned:,} items."
    if judgement.verdict is Verdict.INCONCLUSIVE and look < looks:
        if not hopeless and not pooled.unpaired:
            return None
        if hopeless:
            where += f" GO had become improbable ({', '.join(hopeless)}), which shows no loss beyond the margin."
    comparison = Comparison(confidence=policy.confidence, pooled=compared[0], tasks=tuple(compared[1:]))
    return judgement.model_copy(update={"summary": told(judgement, _OPENINGS, _in_words) + where}), comparison


def _compared(pairs: TaskPairs, passing: float, failing: float) -> PairedAccuracy:
    """The comparison, with an upper bound that errs with a chance of `passing`, and a lower one with `failing`."""
    if not pairs.items:
        return PairedAccuracy(name=pairs.name, pairs=0, unpaired=pairs.unpaired)
    (before, after), sample = pairs.scores, pairs.sample
    clusters = len({(one.task, one.cluster or one.item_id) for one, _ in pairs.items})
    return PairedAccuracy(
        name=pairs.name,
        pairs=len(pairs.items),
        unpaired=pairs.unpaired,
        baseline=float(before.mean()),
        candidate=float(after.mean()),
        loss=Bounds(sample.mean, sample.lower(failing), sample.upper(passing)),
        lost=int((before > after).sum()),
        gained=int((before < after).sum()),
        clusters=clusters if clusters < len(pairs.items) else None,
    )


def _holm(
    judged: Sequence[TaskPairs], alpha: float, bound: Callable[[LossSample, float], float], limit: float
) -> set[str]:
    """Of which tasks a bound is beyond a limit, by Holm's method; at a look each level is what its error buys there.

    W. Maurer and F. Bretz, Multiple testing in group sequential trials using graphical approaches, Statistics in
    Biopharmaceutical Research 5 (2013) 311-320.
    """
    shown = set[str]()
    while left := [pairs for pairs in judged if pairs.name not in shown]:
        more = {pairs.name for pairs in left if pairs.items and bound(pairs.sample, alpha / len(left)) > limit}
        if not more:
            return shown
        shown |= more
    return shown


def is_hopeless(sample: LossSample, margin: float, look: int, looks: int, alpha: float) -> bool:
    """Whether GO at the last look has become improbable: a predictive probability of one per cent or less.

    D. J. Spiegelhalter, L. S. Freedman and P. R. Blackburn, Controlled Clinical Trials 7 (1986) 8-17. It hardly costs
    power, and saves two thirds of the items of a model that lost twice the margin.
    """
    share, last = look / looks, -_NORMAL.inv_cdf(level_of(looks, looks, late, alpha))
    reach = _IMPROBABLE * math.sqrt(1.0 - share) - last * math.sqrt(share)
    error = math.sqrt(max(0.0, sample.variance) / sample.pairs)
    return not sample.few and sample.mean - margin > reach * error


def _fact(pairs: TaskPairs, part: PairedAccuracy, margin: float, verdict: Verdict, policy: AccuracyPolicy) -> Evidence:
    name = f"accuracy loss, {part.name}"
    if part.loss is None:
        detail = "No item is scored on both sides."
        return Evidence(name=name, verdict=verdict, limit=margin, unit="fraction lost", detail=detail)
    clusters = f" in {part.clusters} clusters" if part.clusters else ""
    detail = f"{part.lost} lost, {part.gained} gained{clusters}."
    if verdict is Verdict.ANOMALOUS:
        detail += " Quantization does not make models this much better: look for leaked answers or a broken baseline."
    elif verdict is Verdict.INCONCLUSIVE:
        detail += f" {_undecided(pairs, margin, policy)}"
    return bounded_fact(
        name, verdict, part.loss, margin, part.pairs, detail, confidence=policy.confidence, unit="fraction lost"
    )


def bounded_fact(  # noqa: PLR0917
    name: str,
    verdict: Verdict,
    bounds: Bounds,
    limit: float,
    samples: int,
    detail: str,
    *,
    confidence: float,
    unit: str = "fraction",
) -> Evidence:
    """Evidence of a share between its bounds."""
    measured, lower, upper = bounds.estimate, bounds.lower, bounds.upper
    return Evidence(
        name=name, verdict=verdict, measured=measured, lower=lower, upper=upper, confidence=confidence, limit=limit,
        unit=unit, samples=samples, detail=detail,
    )  # fmt: skip


def _undecided(pairs: TaskPairs, margin: float, policy: AccuracyPolicy) -> str:
    """Why a loss is neither shown to be small enough nor to be too large."""
    sample, items = pairs.sample, len(pairs.items)
    if sample.few:
        return f"Fewer than {ENOUGH_CLUSTERS} independent clusters decide nothing."
    if objection := pairs.objection(margin):
        return objection
    if math.isclose(sample.mean, margin):
        return "The loss equals the limit: no number of items would decide."
    needed = items_needed(margin - sample.mean, sample.variance, policy.confidence) * items / sample.pairs
    more = max(math.ceil(needed), policy.minimum_items if pairs.name == POOLED else 0) - items
    if more > 0:
        return f"About {more:,} more items would decide (90 % power)."
    return "These items are enough for one test, but not for all tasks and looks together."


def _gaps(parts: Sequence[TaskPairs], policy: AccuracyPolicy) -> Iterator[Evidence]:
    """What keeps tasks from passing besides their losses: items without a score, and answers cut short."""
    for pairs in parts:
        items = len(pairs.items)
        found = [("items without a partner or a score", pairs.unpaired, 0.0, "such items never pass: evaluate again")]
        for side, arm in enumerate(("baseline", "candidate")):
            cut = sum(pair[side].cut for pair in pairs.items)
            found.append((f"{arm}'s answers that ended by length", cut, policy.maximum_cut_share * items, CUT_ADVICE))
        for name, count, limit, advice in (one for one in found if one[1] > one[2]):
            yield Evidence(
                name=f"{name}, {pairs.name}", verdict=Verdict.INCONCLUSIVE, measured=count, limit=limit, unit="items",
                samples=items, detail=f"{count} of {items}: {advice}.",
            )  # fmt: skip


_OPENINGS = {
    Verdict.GO: "Not worse than the baseline by more than the margin",
    Verdict.NO_GO: "Worse than the baseline by more than the margin",
    Verdict.INCONCLUSIVE: "Neither shown to be good enough nor shown to be too bad",
    Verdict.ANOMALOUS: "Better than the baseline by more than quantization can explain",
}


def told(judgement: Judgement, openings: Mapping[Verdict, str], in_words: Callable[[Evidence], str]) -> str:
    """The verdict, and the facts that decided it with their figures; of a GO the first one."""
    verdict = judgement.verdict
    deciding = [fact for fact in judgement.evidence if fact.verdict is verdict]
    shown = deciding[: 1 if verdict is Verdict.GO else _MOST_TOLD]
    rest = "" if verdict is Verdict.GO or deciding == shown else f" And {len(deciding) - len(shown)} more."
    return f"{openings[verdict]}. {' '.join(map(in_words, shown))}{rest}"


def _in_words(fact: Evidence) -> str:
    if fact.upper is None:
        return f"{fact.name}: {fact.detail}"
    numbers = (fact.measured, fact.lower, fact.upper, fact.limit)
    figures = [f"{100.0 * number:+.2f}" for number in numbers if number is not None]
    told = "{} points (bounds {} and {}, margin {})".format(*figures)
    return f"{fact.name}: {told} on {fact.samples:,} items, {fact.detail}"
