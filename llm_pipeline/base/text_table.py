"""Text in aligned columns, for logs and terminals."""

from __future__ import annotations

from collections.abc import Container, Sequence


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
