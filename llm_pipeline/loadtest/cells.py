"""Texts of the cells of a load test's tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

ValueT = TypeVar("ValueT")

_THREE_DIGITS = 100.0
_LONGEST_QUOTE = 60


def text_or_blank(value: ValueT | None, shown: Callable[[ValueT], str]) -> str:
    """The text of a value; empty without one."""
    return "" if value is None else shown(value)


def milliseconds(value: float | None) -> str:
    """Three digits; empty without a value."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= _THREE_DIGITS else f"{value:#.3g}".rstrip(".")


def number(value: float) -> str:
    """Three digits, or all digits of a larger whole number, with commas."""
    return f"{value:,.0f}" if abs(value) >= _THREE_DIGITS else f"{value:.3g}"


def per_second(rate: float) -> str:
    """A rate."""
    return f"{number(rate)}/s"


def percent(fraction: float) -> str:
    """A fraction in whole percent."""
    return f"{100 * fraction:.0f} %"


def gigabytes(size: int) -> str:
    """Bytes in decimal gigabytes."""
    return f"{size / 1e9:.2f} GB"


def quote(text: str) -> str:
    """Text of a server on one line, cut."""
    words = " ".join(text.split())
    return words if len(words) <= _LONGEST_QUOTE else f"{words[: _LONGEST_QUOTE - 3]}..."
