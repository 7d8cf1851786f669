"""The release report as one HTML file: no script, no outside reference, light and dark, fit to print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import resources

from llm_pipeline.base.quantities import byte_size, duration, measure, points
from llm_pipeline.base.untrusted_text import several_lines
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.loadtest.findings import findings, rates_in_words
from llm_pipeline.release.evidence_text import bounds_in_words
from llm_pipeline.reporting.accuracy_plot import pareto_points, plot_accuracy, plot_pareto
from llm_pipeline.reporting.canary_plot import plot_canary, plot_evidence
from llm_pipeline.reporting.figure import Plot
from llm_pipeline.reporting.headline import stage_label
from llm_pipeline.reporting.load_plots import draw_load
from llm_pipeline.reporting.model import ReportData

_TEMPLATE = "template.html.jinja"

_SYMBOL = {Verdict.GO: "✓", Verdict.NO_GO: "✕", Verdict.INCONCLUSIVE: "?", Verdict.ANOMALOUS: "!"}


def render_report(data: ReportData) -> str:
    """The report as HTML; every value from outside is escaped."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )
    environment.filters.update(
        clock=lambda seconds: datetime.fromtimestamp(seconds, UTC).strftime("%m-%d %H:%M:%S"),
        duration=duration,
        byte_size=byte_size,
        points=points,
        limit=lambda fact: measure(fact.limit, fact.unit),
        measured=lambda fact: measure(fact.measured, fact.unit),
        bounds=bounds_in_words,
        slug=lambda text: re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-"),
        stage_label=stage_label,
    )
    source = resources.files(__package__).joinpath(_TEMPLATE).read_text(encoding="utf-8")
    plots = {plot.name: plot for plot in draw_plots(data)}
    return environment.from_string(source).render(
        data=data,
        verdict=_verdict_in_words(data),
        plots=plots,
        symbol=_SYMBOL,
        load_tables=findings,
        load_in_words=rates_in_words,
        drawn=Markup,  # our own SVG: matplotlib escapes its texts
    )


def _verdict_in_words(data: ReportData) -> str:
    """The release's verdict, or why there is none."""
    if data.headline.verdict is not None:
        return data.headline.verdict.value
    return "error, no verdict" if data.headline.state == "failed" else "no verdict yet"


def draw_plots(data: ReportData) -> Iterator[Plot]:
    """Every plot for which there is data."""
    if any(study.comparison.pooled.loss for study in data.accuracy):
        yield plot_accuracy(data.accuracy)
    if pareto_points(data.trials):
        yield plot_pareto(data.trials, data.margin)
    for load in data.loads:
        yield from draw_load(load)
    for target, canary in data.canaries.items():
        if canary.points:
            yield plot_canary(target, canary)
        if canary.evidence is not None:
            yield plot_evidence(target, canary, canary.evidence)


def _shown(value: object) -> object:
    """A value as every expression of the template shows it, before it is escaped; our own HTML stays as it is."""
    return several_lines(value) if type(value) is str else value
