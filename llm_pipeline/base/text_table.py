"""Text in aligned columns, and times in it, for logs and terminals."""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from datetime import UTC, datetime

from llm_pipeline.base.untrusted_text import one_line


def aligned(rows: Sequence[Sequence[str]], *, right: Container[int] = ()) -> list[str]:
    """One line a row, two spaces between columns.

    Args:
        rows: Cells, as many in each row; the header is the first one.
        right: Columns, from 0, that are set flush right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        padded = (cell.rjust(width) if place in right else cell.ljust(width) for place, (cell, width) in cells)
        lines.append("  ".join(padded).rstrip())
    return lines


def underlined(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Container[int] = ()) -> list[str]:
    """The same, with a line of dashes below the header."""
    dashes = ["-" * max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return aligned([header, dashes, *rows], right=right)


def titled_columns(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> list[str]:
    """Rows under their header, two spaces between columns.

    Args:
        header: Titles of the columns.
        rows: Cells; as many in each row as there are titles.
        right: Titles of columns with numbers, which are aligned at their right.
    """
    shown = [tuple(map(one_line, row)) for row in (header, *rows)]
    return aligned(shown, right=[column for column, title in enumerate(header) if title in right])


def labelled(facts: Sequence[tuple[str, str]]) -> list[str]:
    """One line a fact, the values in one column; facts without a value are left out."""
    width = max((len(label) for label, value in facts if value), default=0)
    return [f"{label:<{width}}  {one_line(value)}" for label, value in facts if value]


def readable_time(moment: datetime | None) -> str:
    """To the minute, in UTC."""
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
