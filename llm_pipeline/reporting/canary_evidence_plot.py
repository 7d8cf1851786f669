"""The plot of what a canary knew when: e-values over time, each test beside the value that decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from llm_pipeline.canary.evalue_history import LARGEST
from llm_pipeline.canary.timeline import EvidenceSeries
from llm_pipeline.reporting.canary_plot import span
from llm_pipeline.reporting.figure import NARROW_INCHES, Plot, colour, draw_plot
from llm_pipeline.reporting.model import CanaryStudy

_STYLES: tuple[tuple[str, Any], ...] = (
    ("bad", "-"),
    ("candidate", "-"),
    ("baseline", "-"),
    ("unsure", "-"),
    ("good", "-"),
    ("candidate", (0, (3, 1.5))),
    ("baseline", (0, (3, 1.5))),
    ("unsure", (0, (3, 1.5))),
)
"""Colour and line of each metric, in the order of the analysis: errors come first."""

_LEAST = 1e-3
"""Evidence for the null hypothesis, which decides nothing, is drawn no lower."""

_MOST = 1e6
_WHOLE_FROM = 100.0


def plot_evidence(study: CanaryStudy, evidence: EvidenceSeries) -> Plot:
    """E-values of regressions, of parity and of a wrong split, over the canary's time."""
    seconds = np.array([look.at for look in evidence.looks])

    def draw(figure: Any) -> None:
        regressed, parity, split = panels = figure.subplots(3, 1, sharex=True, height_ratios=(1.5, 1.5, 0.8))
        values = np.array([look.regressed for look in evidence.looks])
        _series_panel(regressed, seconds, values, evidence.metrics)
        for limit in sorted(set(evidence.regressed_at)):
            _threshold(regressed, limit, _owners(evidence, limit))
        columns = 3 if figure.get_figwidth() < NARROW_INCHES else 4
        rows = math.ceil(len(evidence.metrics) / columns)
        regressed.set_title("worse than tolerated: e-values", pad=8.0 + 14.0 * rows)
        regressed.legend(
            loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.0, ncols=columns, fontsize=9, handlelength=1.8
        )
        _series_panel(parity, seconds, np.array([look.parity for look in evidence.looks]), evidence.metrics)
        _threshold(parity, evidence.proven_at, "proven")
        parity.set_title("no worse than tolerated: e-values")
        _series_panel(split, seconds, np.array([[look.split] for look in evidence.looks]), ["split"])
        _threshold(split, evidence.split_wrong_at, "wrong")
        split.set_title("traffic split otherwise than intended: e-value of the step")
        for axes in panels:
            for mark in study.marks:
                axes.axvline(mark.seconds, color=colour("muted"), linewidth=0.9, linestyle=(0, (2, 2)))
        first, last = span(study)
        split.set_xlim(first - 0.01 * (last - first), last + 0.01 * (last - first))
        split.set_xlabel("seconds into the canary")

    return draw_plot(
        f"evidence-{study.target}",
        f"Evidence over time, {study.target}",
        evidence_in_words(evidence),
        draw,
        size=(11.4, 7.0),
        narrow_size=(6.4, 7.6),
    )


def evidence_in_words(evidence: EvidenceSeries) -> str:
    """The strongest evidence of a regression beside its threshold, and for how many metrics parity was proven."""
    looks = evidence.looks
    highest = [max(look.regressed[number] for look in looks) for number in range(len(evidence.metrics))]
    nearest = max(range(len(highest)), key=lambda number: highest[number] / evidence.regressed_at[number])
    proven = sum(value >= evidence.proven_at for value in looks[-1].parity)
    reached = "reached" if highest[nearest] >= evidence.regressed_at[nearest] else "did not reach"
    return (
        f"The strongest evidence against the candidate, {evidence.metrics[nearest]}, {reached} its threshold: "
        f"e-value {e_value(highest[nearest])}, threshold {e_value(evidence.regressed_at[nearest])}. Parity was "
        f"proven on {proven} of {len(evidence.metrics)} metrics. An e-value is what a bet against a hypothesis has "
        f"made of 1: if the hypothesis holds, it ever reaches a threshold of x with a chance of at most 1 / x."
    )


def e_value(value: float) -> str:
    """An e-value for people: three digits, or all before the point."""
    if value >= LARGEST:
        return f"over {LARGEST:.0e}"
    return f"{value:,.0f}" if value >= _WHOLE_FROM else f"{value:.3g}"


def _series_panel(axes: Any, seconds: Any, values: Any, names: Sequence[str]) -> None:
    drawn = np.clip(values, _LEAST, _MOST)
    for number, name in enumerate(names):
        role, line = _STYLES[number % len(_STYLES)] if len(names) > 1 else ("ink", "-")
        axes.plot(seconds, drawn[:, number], color=colour(role), linestyle=line, linewidth=1.8, label=name)
    axes.set_yscale("log")
    lowest = 10.0 ** math.floor(math.log10(min(0.1, float(drawn.min()))))
    axes.set_ylim(lowest, 10.0 ** (math.log10(max(1e3, float(drawn.max()))) + 0.9))
    axes.yaxis.get_major_locator().set_params(numticks=6)
    axes.set_yticks([tick for tick in axes.get_yticks() if lowest <= tick <= axes.get_ylim()[1]])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}" if value < 1e4 else f"1e{math.log10(value):.0f}")  # noqa: PLR2004 - five digits
    axes.yaxis.set_minor_formatter(lambda _value, _: "")


def _threshold(axes: Any, value: float, what: str) -> None:
    axes.axhline(value, color=colour("ink"), linewidth=1.1, linestyle=(0, (4, 2)))
    axes.annotate(
        f"{what} at {e_value(value)}", (0.0, value), xycoords=axes.get_yaxis_transform(), textcoords="offset points",
        xytext=(3, 2), ha="left", va="bottom", fontsize=9, color=colour("ink"),
    )  # fmt: skip


def _owners(evidence: EvidenceSeries, limit: float) -> str:
    """Whose threshold a value is."""
    owners = [name for name, own in zip(evidence.metrics, evidence.regressed_at, strict=True) if own == limit]
    return (
        f"{owners[0]}: worse"
        if len(owners) == 1
        else "worse"
        if len(owners) == len(evidence.metrics)
        else "others: worse"
    )
