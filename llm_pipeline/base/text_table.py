"""Text in aligned columns, for logs and terminals."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence


def aligned(rows: Sequence[Sequence[str]], *, right: Container[int] = ()) -> list[str]:
    """One line a row, two spaces between columns.

    Args:
        rows: Cells, as many in each row; the header is the first one.
        right: Columns, from 0, that are set flush right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(_padded(row, widths, right)).rstrip() for row in rows]


def underlined(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Container[int] = ()) -> list[str]:
    """The same, with a line of dashes below the header."""
    dashes = ["-" * max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return aligned([header, dashes, *rows], right=right)


def _padded(row: Sequence[str], widths: Sequence[int], right: Container[int]) -> Iterator[str]:
    for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
        yield cell.rjust(width) if column in right else cell.ljust(width)
