"""Aligned text for people."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from llm_pipeline.base import text_table
from llm_pipeline.base.untrusted_text import one_line

_LONGEST_VALUE = 72


def titled_columns(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> list[str]:
    """Rows under their header, two spaces between columns.

    Args:
        header: Titles of the columns.
        rows: Cells; as many in each row as there are titles.
        right: Titles of columns with numbers, which are aligned at their right.
    """
    shown = [tuple(map(one_line, row)) for row in (header, *rows)]
    return text_table.aligned(shown, right=[column for column, title in enumerate(header) if title in right])


def labelled(facts: Sequence[tuple[str, str]]) -> list[str]:
    """One line a fact, the values in one column; facts without a value are left out."""
    width = max((len(label) for label, value in facts if value), default=0)
    return [f"{label:<{width}}  {one_line(value)}" for label, value in facts if value]


def readable_time(moment: datetime | None) -> str:
    """To the minute, in UTC."""
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def shortened(text: str, longest: int = _LONGEST_VALUE) -> str:
    """The text, its middle left out when it is long."""
    if len(text) <= longest:
        return text
    half = (longest - 3) // 2
    return f"{text[:half]}...{text[-half:]}"
