"""By which of its metrics a task is judged, and what an item scores by it.

lm-eval gives most tasks several metrics, and several readings of an answer (filters). A gate needs one number an item.
The release config may name it; otherwise the choice follows what is published of these tasks, in this order:

* the metric and the filter that the task's group is aggregated by;
* `FIELD`, for tasks whose published score is not the one that their file lists first;
* the first metric of the task's file that can be given item by item; but `acc_norm` where a task has it beside `acc`,
  as the leaderboards report HellaSwag and ARC, and a likelihood only where nothing else is measured.

Likelihoods are given as losses an item: bits a byte (or a word) of a text, nats of a continuation. A metric that only
the whole set has (Matthews' correlation, corpus BLEU, F1 over classes) is refused, since items cannot be paired by it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.base.records import Frozen

FIELD: Mapping[str, tuple[str | None, str | None]] = {
    "coqa": ("f1", None),
    "drop": ("f1", None),
    "gsm8k": ("exact_match", "flexible-extract"),
    "gsm8k_cot": ("exact_match", "flexible-extract"),
    "truthfulqa_gen": ("bleu_acc", None),
}
"""Metric and filter of tasks whose first ones are not what is reported. GSM8K by the last number of the answer: the
strict reading wants `#### 18`, which chat models often leave out, and calls a good model broken."""

_BETTER: Mapping[str, str] = {"acc": "acc_norm", "ter": "chrf"}
"""What is reported in place of a task's first metric, where the task has both."""
_LIKELIHOODS = ("perplexity", "weighted_perplexity", "bits_per_byte")
_SHARES = re.compile(r"(.*_)?(acc|em|f1)(_(norm|bytes|mutual_info))?|exact_match|pass@\d+|r@\d+|mrr|contains")
_ROUNDING = 1e-6
_PROBE = ([0.25, 0.5, 1.0, 0.0], [1.0, 0.0], [-1.0, 1.0])
"""The last one finds a mean that leaves out the -1 of documents that its metric does not apply to."""


class TaskMetric(Frozen):
    """How a task is asked, and what the score of its items is.

    Attributes:
        metric: lm-eval's name of it: `acc`, `acc_norm`, `exact_match`.
        filter: lm-eval's name of the reading of an answer that is scored; `none` where there is only one.
        higher_is_better: False for a loss, such as bits a byte.
        minimum: Lowest score an item can have; None where that is not known.
        maximum: Highest score an item can have; None where that is not known.
        few_shots: Solved examples in each prompt.
        chat_template: The prompts are in the model's chat format.
    """

    metric: str
    filter: str = "none"
    higher_is_better: bool = True
    minimum: float | None = None
    maximum: float | None = None
    few_shots: int = 0
    chat_template: bool = False

    @property
    def is_share(self) -> bool:
        """Whether scores are from 0 to 1, and more is better, as of right and wrong answers."""
        return self.higher_is_better and self.minimum == 0.0 and self.maximum == 1.0


@dataclass(frozen=True)
class Described:
    """A task's metrics as lm-eval describes them, with what they were of one answer.

    Attributes:
        task: Its name.
        values: What one document scored, by metric.
        aggregations: How lm-eval makes one number of all documents' values: its name of it, or the function.
        higher_is_better: By metric.
    """

    task: str
    values: Mapping[str, Any]
    aggregations: Mapping[str, str | Callable[[Sequence[Any]], Any] | None]
    higher_is_better: Mapping[str, bool]

    @property
    def names(self) -> list[str]:
        """The metrics, in the task's order."""
        return [name for name in dict.fromkeys([*self.aggregations, *self.values]) if name in self.values]


@dataclass(frozen=True)
class ItemScore:
    """One task's metric, and how a number is read from lm-eval's value of it."""

    metric: TaskMetric
    read: Callable[[Any], float]

    def asked(self, *, few_shots: int, chat_template: bool) -> ItemScore:
        """The same, with how the task is asked."""
        said = {"few_shots": few_shots, "chat_template": chat_template}
        return ItemScore(self.metric.model_copy(update=said), self.read)

    def of(self, values: Mapping[str, Any], where: str) -> float | None:
        """An item's score out of lm-eval's values; None if lm-eval gave none.

        Raises:
            IntegrityError: It is not finite, or of another shape than the task's other values.
        """
        name = self.metric.metric
        if values.get(name) is None:
            return None
        try:
            score = self.read(values[name])
        except (TypeError, ValueError, IndexError) as error:
            raise IntegrityError(
                f"its {name} has another form than in the task's other documents: {error}", where=where
            ) from error
        if not math.isfinite(score):
            raise IntegrityError(f"its {name} is {score}", where=where)
        return self._bounded(score, where)

    def _bounded(self, score: float, where: str) -> float:
        """The score without what rounding put beyond its bounds."""
        low = -math.inf if self.metric.minimum is None else self.metric.minimum
        high = math.inf if self.metric.maximum is None else self.metric.maximum
        if not low - _ROUNDING <= score <= high + _ROUNDING:
            raise IntegrityError(
                f"its {self.metric.metric} is {score:g}, outside the range {low:g} to {high:g} of other documents",
                where=where,
                hint="name another metric in evaluation.task_options",
            )
        return min(max(score, low), high)


def choose_metric(described: Described, wanted: str | None, of_group: Sequence[str] = ()) -> ItemScore:
    """The metric that a task is judged by.

    Args:
        described: The task.
        wanted: What the release config names.
        of_group: What the task's groups are aggregated by, the first that it has counts.

    Raises:
        ConfigError: The task has no such metric, or none that can be given item by item.
    """
    usable = {name: read for name in described.names if (read := _reading(described, name)) is not None}
    if wanted is not None and wanted not in usable:
        raise _refused(described, wanted, list(usable))
    if not usable:
        raise _refused(described, ", ".join(described.names), [])
    preferred = (wanted, *of_group, FIELD.get(described.task, (None, None))[0])
    name = next((one for one in preferred if one is not None and one in usable), "") or _usual(described, list(usable))
    value = usable[name](described.values[name])
    return ItemScore(_metric(described, name, value), usable[name])


def refuse_by_file(task: str, metrics: Sequence[tuple[str, str | None]], wanted: str | None) -> None:
    """Refuse what a task's file alone shows to be no score of single items.

    Args:
        task: Its name.
        metrics: The metrics of its file, each with lm-eval's name of its aggregation; None for the metric's own.
        wanted: What the release config names.

    Raises:
        ConfigError: The task has no such metric, or none that can be given item by item.
    """
    usable = [name for name, aggregation in metrics if (aggregation or _OWN_AGGREGATION.get(name)) not in _WHOLE_SETS]
    known = Described(task, dict.fromkeys(name for name, _ in metrics), dict(metrics), {})
    if (metrics and not usable) or (wanted is not None and wanted not in usable):
        raise _refused(known, wanted or ", ".join(known.names), usable)


def choose_filter(task: str, names: Sequence[str], wanted: str | None, of_group: Sequence[str] = ()) -> str:
    """The reading of an answer that is scored.

    Raises:
        ConfigError: The task has no such filter.
    """
    if wanted is not None and wanted not in names:
        raise ConfigError(f"task {task} has no filter {wanted!r}", hint=f"it has: {', '.join(names)}")
    preferred = (wanted, *of_group, FIELD.get(task, (None, None))[1])
    return next((one for one in preferred if one is not None and one in names), names[0])


def _usual(described: Described, usable: list[str]) -> str:
    likelihood = [name for name in usable if described.aggregations.get(name) in _LIKELIHOODS]
    others = [name for name in usable if name not in likelihood]
    if others:
        return next((better for first, better in _BETTER.items() if others[0] == first and better in others), others[0])
    return "bits_per_byte" if "bits_per_byte" in likelihood else likelihood[0]


def _metric(described: Described, name: str, value: float) -> TaskMetric:
    kind = described.aggregations.get(name, "mean")
    bounds: tuple[float | None, float | None] = (None, None)
    if kind in _LIKELIHOODS:
        bounds = (0.0, None)
    elif isinstance(kind, str) and kind in _BOUNDS:
        bounds = _BOUNDS[kind]
    elif _SHARES.fullmatch(name) and 0.0 <= value <= 1.0:
        bounds = (0.0, 1.0)
    higher = kind not in _LIKELIHOODS and described.higher_is_better.get(name, True)
    return TaskMetric(metric=name, higher_is_better=higher, minimum=bounds[0], maximum=bounds[1])


def _reading(described: Described, name: str) -> Callable[[Any], float] | None:
    """How a number is read from a document's value; None for a metric that only the whole set has."""
    kind = described.aggregations.get(name, "mean")
    read = _READINGS.get(kind) if isinstance(kind, str) else (_number if kind and _is_mean(kind) else None)
    if read is None:
        return None
    try:
        read(described.values[name])
    except (TypeError, ValueError, IndexError):
        return None
    return read


def _is_mean(aggregate: Callable[[Sequence[Any]], Any]) -> bool:
    """Whether a task's own function of all documents' values is their mean, so that each counts by itself."""
    try:
        return all(math.isclose(float(aggregate(list(some))), sum(some) / len(some)) for some in _PROBE)
    except Exception:  # noqa: BLE001  # it is the task's own code, and may do anything with a number
        return False


def _refused(described: Described, name: str, usable: list[str]) -> ConfigError:
    if name not in described.names and usable:
        problem = f"task {described.task} has no metric {name!r}"
    else:
        problem = f"task {described.task}: {name or 'no metric'} has no score for a single item"
    hint = (
        f"set evaluation.task_options.{described.task}.metric to one of: {', '.join(usable)}"
        if usable
        else "leave the task out, or give it a metric of single documents (acc, exact_match, chrf) in a task file of "
        "your own: a gate pairs baseline and candidate item by item"
    )
    return ConfigError(problem, hint=hint)


def _number(value: Any) -> float:
    import numpy as np  # here: it loads slowly, and this module is also read for the names of metrics

    if not isinstance(value, bool | int | float | np.number | np.bool_):
        raise TypeError(f"{type(value).__name__} is not a number")
    return float(value)


def _nats(value: Any) -> float:
    return -_number(value)


def _bits(value: Any) -> float:
    likelihood, units = value
    return -_number(likelihood) / max(1.0, _number(units)) / math.log(2.0)


def _brier(value: Any) -> float:
    """G. W. Brier, Verification of forecasts expressed in terms of probability, Monthly Weather Review 78 (1950)."""
    import numpy as np

    right, probabilities = value
    rest = np.asarray(probabilities, dtype=float)
    rest = rest - np.eye(rest.size)[int(right)]
    return float((rest**2).sum())


def _translated(name: str) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        import sacrebleu

        reference, said = value
        references = [str(one) for one in (reference if isinstance(reference, list | tuple) else [reference])]
        words = {"word_order": 2} if name == "chrf++" else {}
        metric = sacrebleu.sentence_ter if name == "ter" else sacrebleu.sentence_chrf
        said = said[0] if isinstance(said, list | tuple) else said
        return float(metric(str(said), references, **words).score)

    return read


_READINGS: Mapping[str, Callable[[Any], float]] = {
    "mean": _number,
    "nanmean": _number,
    "perplexity": _nats,
    "weighted_perplexity": _bits,
    "bits_per_byte": _bits,
    "brier_score": _brier,
    **{name: _translated(name) for name in ("chrf", "chrf++", "ter")},
}
"""By lm-eval's name of the aggregation. The chrF of a document is that of the document alone: their mean is not the
corpus' chrF, but ranks models alike and can be paired."""
_WHOLE_SETS = frozenset({"matthews_corrcoef", "f1", "bleu", "median", "bypass"})
_OWN_AGGREGATION = {"mcc": "matthews_corrcoef", "f1": "f1", "bleu": "bleu", "bypass": "bypass"}
"""lm-eval's aggregation of a metric whose task names none, of those that only the whole set has."""
_BOUNDS: Mapping[str, tuple[float | None, float | None]] = {
    "brier_score": (0.0, 2.0),
    "chrf": (0.0, 100.0),
    "chrf++": (0.0, 100.0),
    "ter": (0.0, None),
}
