from __future__ import annotations

import random

import pytest

from llm_pipeline.accuracy.token_rows import ROW_TOKENS, batch_of, pack_rows


def seen_from(batch, row, column):
    """The tokens that a column of a row may look at, by their positions: what the attention mask says, in words."""
    place = batch.tokens.shape[1] - batch.columns + column
    mine = [cells[row, place] for cells in (batch.positions, batch.contexts, batch.continuations)]
    seen = {}
    for other in range(batch.tokens.shape[1]):
        position, context, continuation = (
            cells[row, other] for cells in (batch.positions, batch.contexts, batch.continuations)
        )
        if position <= mine[0] and context in (0, mine[1]) and continuation in (0, mine[2]):
            assert position not in seen
            seen[position] = int(batch.tokens[row, other])
    assert sorted(seen) == list(range(len(seen)))
    return tuple(seen[position] for position in range(len(seen)))


def questions(seed):
    draw = random.Random(seed)  # noqa: S311 - the same in every run
    words = lambda count: tuple(draw.randrange(1, 1000) for _ in range(count))  # noqa: E731
    examples = words(60)
    contexts = [examples + words(draw.randrange(1, 30)) for _ in range(6)] + [words(n) for n in (1, 2, 9)]
    contexts.append(contexts[0] + words(3))  # one that begins with all of another
    return [(context, words(draw.randrange(1, 6))) for context in contexts for _ in range(draw.randrange(1, 5))]


@pytest.mark.parametrize("seed", range(5))
def test_every_score_sees_its_own_sequence_and_nothing_else(seed):
    requests = questions(seed)
    batch = batch_of(pack_rows(requests))
    found = {number: [] for number in range(len(requests))}
    for row, column, token, request in batch.scores.T:
        found[request].append((seen_from(batch, row, column), token))
    for (context, continuation), scores in zip(requests, found.values(), strict=True):
        assert scores == [(context + continuation[:n], continuation[n]) for n in range(len(continuation))]


def test_a_context_stands_once_for_all_its_choices():
    context = tuple(range(100, 350))
    (row,) = pack_rows([(context, (choice, 2, 3, 4)) for choice in range(4)])
    assert row.length == 250 + 4 * 3
    assert row.requests == 4


def test_examples_that_questions_share_stand_once_a_row():
    examples = tuple(range(700))
    rows = pack_rows([(examples + (1000 + n,) * 50, (7,)) for n in range(20)])
    assert sum(row.length for row in rows) < 20 * 751 / 5
    assert all(row.length <= ROW_TOKENS for row in rows)


def test_contexts_with_little_in_common_get_rows_of_their_own():
    rows = pack_rows([((1, 2, 3, n), (5,)) for n in range(4)])
    assert [row.length for row in rows] == [4, 4, 4, 4]


def test_continuations_too_long_for_one_row_are_split():
    rows = pack_rows([((1, 2), (n,) * 1500) for n in range(3)])
    assert [row.requests for row in rows] == [1, 1, 1]


def test_rows_come_longest_first_and_are_filled_up_at_their_front():
    rows = pack_rows([((1,) * n, (2, 3)) for n in (3, 30, 12)])
    assert [row.length for row in rows] == [31, 13, 4]
    batch = batch_of(rows)
    assert batch.tokens.shape == (3, 32)
    assert (batch.contexts[:, 0] == -1).all()
    assert (batch.contexts[:, -1] != -1).all()
