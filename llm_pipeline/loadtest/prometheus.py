"""Prometheus' text format, as far as Triton and DCGM's exporter write it; and what counters grew by."""

from __future__ import annotations

import re
from collections.abc import Callable

_SAMPLE = re.compile(
    r'^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?[ \t]+(?P<value>\S+)', re.MULTILINE
)
_LABEL = re.compile(r'(?P<name>\w+)="(?P<value>(?:[^"\\]|\\.)*)"')

Series = tuple[str, frozenset[tuple[str, str]]]
"""A metric's name and its labels."""


def parse_metrics(text: str) -> dict[Series, float]:
    """The samples of a page of metrics; comments, and values that are no numbers, are left out."""
    found: dict[Series, float] = {}
    for match in _SAMPLE.finditer(text):
        labels = frozenset((label["name"], label["value"]) for label in _LABEL.finditer(match["labels"] or ""))
        try:
            found[match["name"], labels] = float(match["value"])
        except ValueError:
            continue
    return found


class Increases:
    """What counters grew by, from page to page, as Prometheus' `increase`: one that fell has begun again at 0."""

    def __init__(self) -> None:
        self._last: dict[Series, float] | None = None
        self._sums: dict[Series, float] = {}

    def add(self, page: dict[Series, float]) -> None:
        """Take the next page."""
        if self._last is None:
            self._last = dict(page)
            self._sums = dict.fromkeys(page, 0.0)
            return
        for series, value in page.items():
            before = self._last.get(series, 0.0)
            self._sums[series] = self._sums.get(series, 0.0) + (value - before if value >= before else value)
            self._last[series] = value

    def total(self, name: str, wanted: Callable[[dict[str, str]], bool] = lambda _: True) -> float | None:
        """What all series of a metric grew by together; None when there is none."""
        found = [value for (metric, labels), value in self._sums.items() if metric == name and wanted(dict(labels))]
        return sum(found) if found else None
