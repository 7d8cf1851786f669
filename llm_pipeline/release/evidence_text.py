"""A gate's evidence as text: a table for the task log, and Markdown for the approval form."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from llm_pipeline.base.quantities import byte_size, measure
from llm_pipeline.base.text_table import aligned, underlined
from llm_pipeline.base.untrusted_text import markdown, one_line
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict
from llm_pipeline.release.contract import StageResult

WIDTH = 120
"""Columns of a line of the log."""
_LEAST_NAME = 20
_HEADINGS = ("fact", "verdict", "measured", "bounds", "limit", "n")
_LOAD_FIGURES = {
    "confirmed_rate_per_second": "{:.3g} requests/s confirmed",
    "target_rate_per_second": "{:.3g} expected",
    "good_fraction": "{:.1%} good",
    "first_token_p95_milliseconds": "first token p95 {:.3g} ms",
    "time_per_output_token_p95_milliseconds": "per output token p95 {:.3g} ms",
    "end_to_end_p95_milliseconds": "end to end p95 {:.4g} ms",
    "output_tokens_per_second": "{:,.0f} output tokens/s",
    "acceptance_length": "{:.2f} tokens a step with speculation",
}
"""Metrics of a load test that the one who approves should see, and how."""


def log_table(judgement: Judgement) -> str:
    """The verdict and its evidence, as one log record: the first sentence of the summary, and its figures below."""
    opening = one_line(judgement.summary).partition(". ")[0].rstrip(".")
    lines = textwrap.wrap(f"{judgement.verdict.value}: {opening}{judgement.verdict.see}", WIDTH)
    lines += underlined(_HEADINGS, list(_fitted([tuple(map(one_line, _row(fact))) for fact in judgement.evidence])))
    for fact in judgement.evidence:
        if fact.detail and fact.verdict is not Verdict.GO:
            lines += textwrap.wrap(one_line(f"{fact.name}: {fact.detail}"), WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def measured_table(what: str, metrics: Mapping[str, object]) -> str:
    """What a stage that judges nothing measured, one a line; metrics without a value are left out."""
    told = {name: value for name, value in metrics.items() if value not in (None, "")}
    rows = aligned([(name.replace("_", " "), _metric(name, value)) for name, value in told.items()]) if told else []
    return "\n".join([f"{what} made and measured:", *rows])


def facts_table(judgement: Judgement) -> str:
    """One line a fact, as Markdown, for the human who decides about the next step."""
    facts = (tuple(map(markdown, _row(fact))) for fact in judgement.evidence)
    return "\n".join(f"| {' | '.join(row)} |" for row in (_HEADINGS, ("---",) * len(_HEADINGS), *facts))


def markdown_table(results: Iterable[StageResult]) -> str:
    """One line a gate, for the human who decides about production."""
    lines = ["| gate | subject | verdict | summary |", "|---|---|---|---|"]
    for result in results:
        if result.judgement is not None:
            again = " (reused)" if result.reused else ""
            gate, subject = markdown(result.stage.replace("_", " ") + again), markdown(result.subject)
            summary = " ".join(filter(None, (result.judgement.summary, _load_figures(result))))
            lines.append(f"| {gate} | {subject} | **{result.judgement.verdict.value}** | {markdown(summary)} |")
    return "\n".join(lines)


def _load_figures(result: StageResult) -> str:
    """What a load test measured where it decided, as one sentence; empty for other stages."""
    told = result.metrics
    figures = [
        text.format(value) for name, text in _LOAD_FIGURES.items() if isinstance(value := told.get(name), int | float)
    ]
    return f"Measured: {', '.join(figures)}." if result.stage == "load_test" and figures else ""


def _row(fact: Evidence) -> tuple[str, ...]:
    measured = "no data" if fact.measured is None else measure(fact.measured, fact.unit)
    limit = "" if fact.limit is None else measure(fact.limit, fact.unit)
    return (fact.name, fact.verdict.value, measured, bounds_in_words(fact), limit, f"{fact.samples:,}")


def bounds_in_words(fact: Evidence) -> str:
    """The bounds of a fact with their confidence, wherever they are shown: `+0.4 to +1.2 points at 95 %`."""
    if fact.lower is None and fact.upper is None:
        return ""
    lower, upper = (None if bound is None else measure(bound, fact.unit) for bound in (fact.lower, fact.upper))
    told = f"from {lower}" if upper is None else f"up to {upper}"
    if lower is not None and upper is not None:
        number, _, unit = lower.partition(" ")
        told = f"{number if upper.endswith(f' {unit}') else lower} to {upper}"
    return told if fact.confidence is None else f"{told} at {100 * fact.confidence:g} %"


def _fitted(rows: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """The rows, of which the first cell goes on in further rows where a line of the log would be too long."""
    others = [max(map(len, column)) for column in list(zip(_HEADINGS, *rows, strict=True))[1:]]
    width = max(WIDTH - sum(others) - 2 * len(others), _LEAST_NAME)
    for name, *cells in rows:
        first, *more = textwrap.wrap(name, width, subsequent_indent="  ") or [""]
        yield (first, *cells)
        yield from ((part, *("" for _ in cells)) for part in more)


def _metric(name: str, value: object) -> str:
    if isinstance(value, int | float) and name.endswith("bytes"):
        return byte_size(value)
    return f"{value:.4g}" if isinstance(value, float) else one_line(str(value))
