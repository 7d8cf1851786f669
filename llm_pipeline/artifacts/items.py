"""Scored items: what an evaluation leaves behind, one line an item, so that two of them can be paired."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import Field

from llm_pipeline.base.json_document import load_records
from llm_pipeline.base.records import Frozen

ITEMS_FILE = "items.jsonl"


class ScoredItem(Frozen):
    """One evaluated item: a document of a task, and its score.

    Attributes:
        task: lm-eval task name.
        item_id: The document's number in the task.
        fingerprint: Hash over the document and the rendered prompt: equal only for the same question.
        score: 1.0 right, 0.0 wrong (or a fraction for graded tasks); None when the harness gave none.
        generative: The model produced text (rather than log-likelihoods).
        cluster: What the item belongs to with others (a passage, a template); empty when it stands for itself.
        prompt: The rendered prompt; empty for log-likelihood items.
        completion: What the model produced; empty for log-likelihood items.
        stop: Words at which its text ends; none for log-likelihood items.
        maximum_tokens: Most tokens of its text; None for log-likelihood items.
        chance: What guessing scores here on average, from 0 to 1; None where that is not known. Of a baseline only.
        cut: The answer ended by length, not by the model.
    """

    task: str
    item_id: int
    fingerprint: str
    score: Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)] | None
    generative: bool
    cluster: str = ""
    prompt: str = ""
    completion: str = ""
    stop: tuple[str, ...] = ()
    maximum_tokens: int | None = None
    chance: float | None = None
    cut: bool = False


def write_items(directory: Path, items: Iterable[ScoredItem]) -> None:
    """Write the items of one evaluation to `directory`."""
    with (directory / ITEMS_FILE).open("w", encoding="utf-8") as stream:
        stream.writelines(item.model_dump_json() + "\n" for item in items)


def read_items(directory: Path) -> list[ScoredItem]:
    """Read the items of one evaluation.

    Raises:
        IntegrityError: The file is missing or a line is not an item.
    """
    return load_records(ScoredItem, directory / ITEMS_FILE, "not a scored item")
