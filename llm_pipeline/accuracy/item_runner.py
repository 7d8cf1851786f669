"""Runs the items of an evaluation in portions, each saved, until enough are scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llm_pipeline.accuracy.looks import LookPlan
from llm_pipeline.accuracy.saved_items import Place, SavedItems
from llm_pipeline.accuracy.score_scale import PLAIN, Scoring
from llm_pipeline.accuracy.sequential import judge_look
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Judgement
from llm_pipeline.config.policy import AccuracyPolicy

if TYPE_CHECKING:
    from lm_eval.api.model import LM

    from llm_pipeline.accuracy.questions import Questions
    from llm_pipeline.base.progress import Progress

log = get_logger(__name__)

PORTION_ITEMS = 512
"""Enough for full batches, few enough that little is lost by a kill. Portions begin at multiples of it, so that a
resumed evaluation, and the baseline's and the candidate's, make the same batches."""


class Asking:
    """A running evaluation, which takes up what an earlier attempt saved.

    Attributes:
        items: What was asked so far, by earlier attempts too.
        asked: How many of them this attempt asked.
    """

    def __init__(
        self, questions: Questions, model: LM, order: Sequence[Place], saved: SavedItems, progress: Progress
    ) -> None:
        self._questions, self._model, self._order, self._saved = questions, model, order, saved
        self.items: list[ScoredItem] = saved.read(order)
        self.asked = 0
        if self.items:
            log.info("continuing with the items of an earlier attempt", items=len(self.items), of=len(order))
            progress.skip(len(questions.instances(order[: len(self.items)])))

    def ask_until(self, count: int) -> Sequence[ScoredItem]:
        """The first `count` items of the order, asking those that are missing.

        Raises:
            PipelineError: As `Questions.ask`.
        """
        while len(self.items) < count:
            start = len(self.items)
            end = min(count, (start // PORTION_ITEMS + 1) * PORTION_ITEMS)
            portion = self._questions.ask(self._model, self._order[start:end])
            self._saved.append(portion)
            self.items += portion
            self.asked += len(portion)
        return self.items[:count]

    def ask_until_decided(
        self,
        baseline: Sequence[ScoredItem],
        plan: LookPlan,
        policy: AccuracyPolicy,
        tasks: Sequence[str] | None = None,
        scoring: Scoring = PLAIN,
    ) -> tuple[Judgement, int]:
        """Ask look by look, until the evidence decides.

        Returns:
            The judgement, and the look it was made at, counted from 1.

        Raises:
            PipelineError: As `Questions.ask`.
        """
        for look, size in enumerate(plan.sizes, 1):
            judgement = judge_look(baseline, self.ask_until(size), plan, look, policy, tasks=tasks, scoring=scoring)
            if judgement is not None:
                log.info("the accuracy is decided", look=look, looks=len(plan.sizes), items=size, of=plan.items)
                return judgement, look
        raise AssertionError("the last look always decides")  # judge_look promises it
