"""Rows of tokens that share a common prefix once, for models that take an attention mask.

The choices of a question continue the same context, and the questions of a few-shot task begin with the same
examples. A row holds the beginning that its contexts share, then what each context has of its own, then what is
scored: the last token of each context and the continuations. An attention mask lets each token see its own past
alone, and position ids count along that past, so that every number is what the plain sequence would have given.
What is scored stands at the end of the row, and rows are filled up at their front: the logits of the last few
columns are all that is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

Tokens = tuple[int, ...]
ROW_TOKENS = 2048
"""A row is filled with further contexts up to this length: attention costs grow with its square."""
_WORTH_SHARING = 32
_ALIGNMENT = 8
"""Attention kernels want masks whose rows are multiples of this."""


@dataclass(frozen=True)
class Continuation:
    """Tokens to score after a context, at least one, and the number of their request among all."""

    request: int
    tokens: Tokens


@dataclass
class Row:
    """Contexts with their continuations, scored in one row of a batch.

    Attributes:
        shared: Length of the beginning that all contexts share; shorter than the shortest of them.
        contexts: Different contexts, each with what follows it.
    """

    shared: int
    contexts: list[tuple[Tokens, list[Continuation]]] = field(default_factory=list)

    @property
    def scored(self) -> int:
        """Tokens at the end of the row whose logits are needed."""
        return sum(_scored(after) for _, after in self.contexts)

    @property
    def length(self) -> int:
        """Tokens of the row, without filling."""
        own = sum(len(context) - 1 - self.shared for context, _ in self.contexts)
        return self.shared + own + self.scored

    @property
    def requests(self) -> int:
        """Continuations of all contexts in the row."""
        return sum(len(after) for _, after in self.contexts)


def _scored(after: Sequence[Continuation]) -> int:
    return 1 + sum(len(continuation.tokens) - 1 for continuation in after)


def pack_rows(requests: Iterable[tuple[Tokens, Tokens]]) -> list[Row]:
    """Contexts and continuations as rows, longest row first.

    Args:
        requests: Context and continuation of each request, neither of them empty.
    """
    by_context: dict[Tokens, list[Continuation]] = {}
    for number, (context, continuation) in enumerate(requests):
        by_context.setdefault(context, []).append(Continuation(number, continuation))
    rows: list[Row] = []
    for context in sorted(by_context):
        for after in _portions(by_context[context]):
            if not (rows and _joined(rows[-1], context, after)):
                rows.append(Row(len(context) - 1, [(context, after)]))
    return sorted(rows, key=lambda row: (-row.length, row.contexts[0][0]))


def _portions(continuations: Sequence[Continuation]) -> Iterator[list[Continuation]]:
    """One portion as a rule; several when the continuations alone would make a row too long."""
    portion: list[Continuation] = []
    for continuation in continuations:
        if portion and _scored([*portion, continuation]) > ROW_TOKENS:
            yield portion
            portion = []
        portion.append(continuation)
    yield portion


def _joined(row: Row, context: Tokens, after: list[Continuation]) -> bool:
    """Add a context to the row if that saves enough of it and there is room."""
    shared = min(_common(row.contexts[0][0], context), row.shared, len(context) - 1)
    joined = Row(shared, [*row.contexts, (context, after)])
    saved = row.length + len(context) - 1 + _scored(after) - joined.length
    if saved < max(_WORTH_SHARING, len(context) // 2) or joined.length > ROW_TOKENS:
        return False
    row.shared, row.contexts = joined.shared, joined.contexts
    return True


def _common(first: Tokens, second: Tokens) -> int:
    if first == second:
        return len(first)
    return next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


@dataclass(frozen=True)
class Batch:
    """Rows as arrays, filled up at the front; `[rows, columns]` unless said otherwise.

    Attributes:
        tokens: Token ids.
        positions: Position of each token in its own sequence.
        contexts: Which context a token belongs to: 0 for the shared beginning, -1 for filling.
        continuations: Which continuation it belongs to, numbered through the row: 0 for contexts.
        columns: How many columns at the end have all that is scored.
        scores: `[4, scores]`: row, column within the last `columns`, the token whose probability is asked for there,
            and the request it counts for.
    """

    tokens: np.ndarray
    positions: np.ndarray
    contexts: np.ndarray
    continuations: np.ndarray
    columns: int
    scores: np.ndarray


def batch_of(rows: Sequence[Row]) -> Batch:
    """Lay out rows for one forward pass."""
    width = -(-max(row.length for row in rows) // _ALIGNMENT) * _ALIGNMENT
    columns = max(row.scored for row in rows)
    cells = np.zeros((4, len(rows), width), dtype=np.int64)
    cells[2] = -1
    scores: list[tuple[int, int, int, int]] = []
    for number, row in enumerate(rows):
        cells[:, number, width - row.length :] = _cells(row)
        first = columns - row.scored
        scores += [(number, first + column, token, request) for column, token, request in _scores(row)]
    tokens, positions, contexts, continuations = cells
    return Batch(tokens, positions, contexts, continuations, columns, np.asarray(scores, dtype=np.int64).T)


def _cells(row: Row) -> np.ndarray:
    """Token, position, context and continuation of each token of a row: `[4, length]`."""
    first = row.contexts[0][0]
    parts = [_run(first[: row.shared], 0, 0, 0)]
    for number, (context, _) in enumerate(row.contexts, 1):
        parts.append(_run(context[row.shared : -1], row.shared, number, 0))
    continuations = 0
    for number, (context, after) in enumerate(row.contexts, 1):
        parts.append(_run(context[-1:], len(context) - 1, number, 0))
        for continuation in after:
            continuations += 1
            parts.append(_run(continuation.tokens[:-1], len(context), number, continuations))
    return np.concatenate(parts, axis=1)


def _run(tokens: Tokens, position: int, context: int, continuation: int) -> np.ndarray:
    cells = np.empty((4, len(tokens)), dtype=np.int64)
    cells[0], cells[1] = tokens, np.arange(position, position + len(tokens))
    cells[2], cells[3] = context, continuation
    return cells


def _scores(row: Row) -> Iterator[tuple[int, int, int]]:
    """Column within the scored part, wanted token and request of each score of a row."""
    start = 0
    for _, after in row.contexts:
        column = start + 1
        for continuation in after:
            tokens = continuation.tokens
            yield start, tokens[0], continuation.request
            for token in tokens[1:]:
                yield column, token, continuation.request
                column += 1
        start = column
