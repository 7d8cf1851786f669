"""A page of Prometheus metrics, as the served models, Triton and other servers write it."""

from __future__ import annotations

import re

_SAMPLE = re.compile(
    r'^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?[ \t]+(?P<value>\S+)', re.MULTILINE
)
_LABEL = re.compile(r'(?P<name>\w+)="(?P<value>(?:[^"\\]|\\.)*)"')
_LARGEST = 1e300  # sums of larger ones may not be finite

Label = tuple[str, str]
Series = tuple[str, frozenset[Label]]
"""A metric's name and its labels."""


def parse_metrics(text: str) -> dict[Series, float]:
    """The samples of a page; comments, and values that are no numbers to count with, are left out."""
    found: dict[Series, float] = {}
    for match in _SAMPLE.finditer(text):
        labels = frozenset((label["name"], label["value"]) for label in _LABEL.finditer(match["labels"] or ""))
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if abs(value) <= _LARGEST:
            found[match["name"], labels] = value
    return found


def metric_values(page: dict[Series, float], *names: str, label: Label | None = None) -> list[float]:
    """The values of all series of these metrics, or of those with a label."""
    return [
        value
        for name in names
        for (metric, labels), value in page.items()
        if metric == name and (label is None or label in labels)
    ]


def whole_sum(page: dict[Series, float], *names: str, label: Label | None = None) -> int | None:
    """The sum of all series of these metrics; None where there is none."""
    values = metric_values(page, *names, label=label)
    return int(sum(values)) if values else None
