"""Runs the items of an evaluation in portions until enough are scored; a killed evaluation continues where it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from llm_pipeline.accuracy.gate import ItemPlace, judge_look
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.base.durable import replace_durably
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen
from llm_pipeline.base.verdict import Judgement
from llm_pipeline.config.policy import AccuracyPolicy

if TYPE_CHECKING:
    from lm_eval.api.model import LM

    from llm_pipeline.accuracy.questions import Questions
    from llm_pipeline.base.progress import Progress

log = get_logger(__name__)


class _Header(Frozen):
    """First line of a file of saved items: what they answer, and the digest of the lines below."""

    evaluation: str
    body: str


class SavedItems:
    """Portions of an evaluation's items, a file each, in the order in which they were asked.

    Args:
        directory: Where the files are; made when needed.
        evaluation: Digest of what is evaluated and how: files of another evaluation are thrown away.
    """

    def __init__(self, directory: Path, evaluation: str) -> None:
        self._directory, self._evaluation = directory, evaluation
        self._portions = 0

    def read(self, order: Sequence[ItemPlace]) -> list[ScoredItem]:
        """The items that are there already, from the start of `order` on.

        A file that is torn, of another evaluation or out of order is removed, and so is all that follows it.
        """
        items: list[ScoredItem] = []
        whole = True
        for path in sorted(self._directory.glob("*.jsonl")):
            portion = self._read_portion(path) if whole else None
            expected = list(order[len(items) : len(items) + len(portion or ())])
            if not portion or [(item.task, item.item_id) for item in portion] != expected:
                whole = False
                log.warning(
                    "saved items are damaged or of another evaluation: they are evaluated again", file=path.name
                )
                path.unlink()
                continue
            items += portion
            self._portions += 1
        return items

    def append(self, items: Sequence[ScoredItem]) -> None:
        """Save a portion: it is there whole, or not at all."""
        self._directory.mkdir(parents=True, exist_ok=True)
        body = "".join(item.model_dump_json() + "\n" for item in items)
        header = _Header(evaluation=self._evaluation, body=sha256_bytes(body.encode()))
        path = self._directory / f"{self._portions:06d}.jsonl"
        replace_durably(path, f"{header.model_dump_json()}\n{body}".encode())
        self._portions += 1

    def _read_portion(self, path: Path) -> list[ScoredItem] | None:
        try:
            first, _, body = path.read_text(encoding="utf-8").partition("\n")
            header = _Header.model_validate_json(first)
            if header != _Header(evaluation=self._evaluation, body=sha256_bytes(body.encode())):
                return None
            return [ScoredItem.model_validate_json(line) for line in body.removesuffix("\n").split("\n")]
        except (ValidationError, UnicodeDecodeError):
            return None


PORTION_ITEMS = 512
"""Enough for full batches, few enough that little is lost by a kill. Portions begin at multiples of it, so that a
resumed evaluation, and the baseline's and the candidate's, make the same batches."""


class ItemRunner:
    """A running evaluation, which takes up what an earlier attempt saved.

    Attributes:
        items: What was asked so far, by earlier attempts too.
        asked: How many of them this attempt asked.
    """

    def __init__(
        self, questions: Questions, model: LM, order: Sequence[ItemPlace], saved: SavedItems, progress: Progress
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
        portions: Sequence[Sequence[ItemPlace]],
        policy: AccuracyPolicy,
        groups: Mapping[str, Sequence[str]],
        tasks: Sequence[str] | None = None,
    ) -> tuple[Judgement, int]:
        """Ask portion by portion, until the evidence decides.

        Returns:
            The judgement, and the look it was made at, counted from 1.

        Raises:
            PipelineError: As `Questions.ask`.
        """
        looks = len(portions)
        for look, size in enumerate(accumulate(map(len, portions)), 1):
            judgement = judge_look(baseline, self.ask_until(size), look, looks, policy, tasks=tasks, groups=groups)
            if judgement is not None:
                log.info("the accuracy is decided", look=look, looks=looks, items=size, of=len(self._order))
                return judgement, look
        raise AssertionError("the last look always decides")  # judge_look promises it
