"""A load test as text for a task's log."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from llm_pipeline.base.text_table import aligned
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict
from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.loadtest.findings import Table, findings, rates_in_words
from llm_pipeline.loadtest.outcome import LoadTestOutcome

WIDTH = 120
_FACTS = ("verdict", "fact", "measured", "bounds", "limit", "n")


def format_load_test(outcome: LoadTestOutcome, policy: LoadTestPolicy) -> str:
    """All that decides, and at the end the sentence that decided; starts with a line break."""
    blocks = ["\n".join(_wrapped(rates_in_words(outcome, policy)))]
    blocks += ["\n".join(_lines(table)) for table in (*findings(outcome, policy), _facts(outcome.judgement))]
    blocks.append("\n".join(_wrapped((f"{outcome.judgement.verdict}: {outcome.judgement.summary}",))))
    return "\n" + "\n\n".join(blocks)


def _lines(table: Table) -> Iterator[str]:
    """Aligned columns, figures at the right, below a title; long notes go on indented."""
    yield table.title
    numbers = [column for column in range(len(table.head)) if table.is_number(column)]
    yield from aligned([table.head, *table.rows], right=numbers)
    yield from _wrapped(table.notes)


def _wrapped(sentences: tuple[str, ...]) -> Iterator[str]:
    for sentence in sentences:
        yield from textwrap.wrap(" ".join(sentence.split()), WIDTH, subsequent_indent="  ")


def _facts(judgement: Judgement) -> Table:
    """The facts, and what is to be known of those that do not say GO."""
    notes = [f"{f.name}: {f.detail}" for f in judgement.evidence if f.detail and f.verdict is not Verdict.GO]
    return Table("Facts", _FACTS, tuple(map(_fact_row, judgement.evidence)), tuple(notes))


def _fact_row(fact: Evidence) -> tuple[str, ...]:
    measured = "no data" if fact.measured is None else f"{_number(fact.measured)} {fact.unit}".strip()
    bounds = "" if fact.lower is None and fact.upper is None else f"{_number(fact.lower)} .. {_number(fact.upper)}"
    limit = "" if fact.limit is None else _number(fact.limit)
    return (str(fact.verdict), fact.name, measured, bounds.strip(), limit, f"{fact.samples:,}")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
