"""Items saved while an evaluation is under way, so that a killed one goes on where it was."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.durable import replace_durably
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen

log = get_logger(__name__)

Place = tuple[str, int]
"""A task and the number of a document in it."""


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

    def read(self, order: Sequence[Place]) -> list[ScoredItem]:
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
        header = _Header(evaluation=self._evaluation, body=_digest(body))
        path = self._directory / f"{self._portions:06d}.jsonl"
        replace_durably(path, f"{header.model_dump_json()}\n{body}".encode())
        self._portions += 1

    def _read_portion(self, path: Path) -> list[ScoredItem] | None:
        try:
            first, _, body = path.read_text(encoding="utf-8").partition("\n")
            header = _Header.model_validate_json(first)
            if header != _Header(evaluation=self._evaluation, body=_digest(body)):
                return None
            return [ScoredItem.model_validate_json(line) for line in body.removesuffix("\n").split("\n")]
        except (ValidationError, UnicodeDecodeError):
            return None


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
