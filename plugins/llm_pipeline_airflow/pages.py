"""The HTML of our pages: no script, nothing from outside, light and dark, wide and narrow."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute

from llm_pipeline.base.errors import IntegrityError, InternalError, PipelineError
from llm_pipeline.base.untrusted_text import html
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.release import ReleaseConfig
from llm_pipeline.inspection.comparison import Comparison
from llm_pipeline.inspection.release_index import IndexedRelease
from llm_pipeline.release.watch_record import WatchStatus
from llm_pipeline.store.references import PointerReference
from llm_pipeline_airflow.faults import known_fault
from llm_pipeline_airflow.links import DAG_PREFIX

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; "
        "base-uri 'none'; form-action 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-store",
}
_STYLE = """
:root{color-scheme:light dark;--ink:#1b2430;--paper:#fff;--line:#d8dee6;--go:#0f6b35;--no-go:#b3261e;--unsure:#7a4f00}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--paper:#14181f;--line:#3a424e;--go:#5fd08b;--no-go:#ff9389;
--unsure:#f0b95c}}
*{box-sizing:border-box}
body{font:14px/1.5 system-ui,sans-serif;margin:1.5rem;color:var(--ink);background:var(--paper)}
.wide{overflow-x:auto;max-width:100%;margin-bottom:1rem}
.wide:focus-visible,a:focus-visible{outline:2px solid;outline-offset:2px}
table{border-collapse:collapse}caption{text-align:left;font-weight:600;padding:.4rem 0}
th,td{padding:.4rem .9rem .4rem 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
a{color:inherit}code{font-size:13px;white-space:nowrap}
input,select,button{font:inherit;padding:.25rem .5rem;min-height:2rem;max-width:100%}
form{display:flex;flex-wrap:wrap;gap:.75rem;align-items:end;margin:0 0 1rem}label{display:grid;gap:.15rem}
.GO{color:var(--go)}.NO_GO,.problem{color:var(--no-go)}.INCONCLUSIVE,.ANOMALOUS{color:var(--unsure)}
"""
Placed = tuple[PointerReference, tuple[bool, str]]
"""A pointer; and whether all is well there, with the words for what was seen."""
_MOST_LISTED = 200
_NOT_LOOKED = "the watch has not looked yet: it starts once the DAG is unpaused and a triggerer runs"
_OPEN = "open"
_SERVES = "serves"
_STATES = ("", *(verdict.value for verdict in Verdict), "denied", "timed out", "ended", _OPEN, _SERVES)
_FIGURES: Mapping[str, Mapping[str, str]] = {
    "size": {"Size": "", "GPU memory": "GPU memory"},
    "speed": {"Engine alone": "alone", "Requests under load": "under load", "Tokens": "", "Tokens a step": "a step"},
    "million tokens": {"Cost": ""},
    "accuracy lost": {"Accuracy lost": ""},
}
"""Columns of the report's figures: the figures' labels, and what a cell says of each beside its recipe or target."""


def page(status: int, title: str, body: str) -> HTMLResponse:
    """A whole page.

    Args:
        status: Of the answer.
        title: Its heading, plain text.
        body: HTML in which every text from outside is escaped.
    """
    document = (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{html(title)}</title>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<style>{_STYLE}</style></head><body><main><h1>{html(title)}</h1>{body}</main></body></html>"
    )
    return HTMLResponse(document, status_code=status, headers=SECURITY_HEADERS)


def message(status: int, title: str, text: str) -> HTMLResponse:
    """A page that says one thing."""
    return page(status, title, f"<p>{html(text)}</p>")


def failed(error: PipelineError) -> HTMLResponse:
    """For what a page could not be made of; an error of ours is written for people, any other is for the log."""
    if isinstance(error, InternalError):
        return message(500, "Internal error", "See the API server's log.")
    return message(500 if isinstance(error, IntegrityError) else 503, "Not available", str(error))


def table(title: str, heads: Iterable[str], rows: Iterable[str]) -> str:
    """A table that scrolls within itself where the page is narrow; nothing without rows."""
    cells = "".join(rows)
    if not cells:
        return ""
    head = "".join(f'<th scope="col">{one}</th>' for one in heads)
    return (
        f'<div class="wide" role="region" aria-label="{html(title)}" tabindex="0"><table>'
        f"<caption>{html(title)}</caption><thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table></div>"
    )


def time(at: datetime | None) -> str:
    """A moment for people; empty for none."""
    return f"{at:%Y-%m-%d %H:%M UTC}" if at is not None else ""


class GuardedRoute(APIRoute):
    """A route that answers an exception by a page: Starlette would raise it again in Airflow's server."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute`."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            try:
                return await handle(request)
            except (HTTPException, RequestValidationError):
                raise
            except Exception as error:  # noqa: BLE001 - the edge of the request
                return failed(known_fault(error, f"{request.method} {self.path}"))

        return guarded


@dataclass(frozen=True)
class ReleaseFilter:
    """What the list is narrowed to.

    Attributes:
        text: Part of a release's id or of its model's.
        state: A verdict, the answer that ended it, `open`, `serves`; empty for all.
    """

    text: str = ""
    state: str = ""

    def of(self, releases: Iterable[IndexedRelease], serving: set[str]) -> list[IndexedRelease]:
        """Those that are asked for."""
        return [one for one in releases if self._fits(one, serving)]

    def _fits(self, one: IndexedRelease, serving: set[str]) -> bool:
        row = one.row
        if self.text.lower() not in f"{row.release_id} {row.model}".lower():
            return False
        if self.state == _SERVES:
            return row.release_id in serving
        return self.state in ("", row.verdict or _OPEN)


def filter_form(asked: ReleaseFilter) -> str:
    """The form that narrows the list."""
    options = "".join(
        f'<option value="{html(state)}"{" selected" if state == asked.state else ""}>{html(state or "all")}</option>'
        for state in _STATES
    )
    return (
        '<form method="get" action="releases" role="search">'
        f'<label>Release or model<input type="search" name="text" value="{html(asked.text)}"></label>'
        f'<label>State<select name="state">{options}</select></label><button>Show</button></form>'
    )


def serving_table(placed: Iterable[Placed]) -> str:
    """What serves where, since when, and whether users are answered there now."""
    rows = (
        f"<tr><td>{html(one.target)}</td><td>{_model(one.model_id)}</td><td>{html(one.name)}</td>"
        f"<td><code>{html(one.pointer.release_id)}</code></td><td>{html(one.pointer.recipe)}</td>"
        f"<td>{html(one.pointer.slot)}</td><td>{time(one.pointer.promoted_at)}</td>"
        f"<td{'' if well else ' class=problem'}>{html(now)}</td></tr>"
        for one, (well, now) in placed
    )
    heads = ("place", "model", "pointer", "release", "recipe", "slot", "since", "now")
    return table("What serves where", heads, rows)


def releases_table(releases: Sequence[IndexedRelease]) -> str:
    """The list, with a box at each release to compare two of them."""
    heads = ("compare", "release", "model", "commit", "created", "verdict", "last stage", "recipe", *_FIGURES)
    listed = table("All releases", (*heads, "cost", "decided"), map(_row, releases[:_MOST_LISTED]))
    if not listed:
        return ""
    if len(releases) > _MOST_LISTED:
        listed += f"<p>The newest {_MOST_LISTED} of {len(releases):,}: ask for others by a part of their name.</p>"
    return f'<form method="get" action="compare">{listed}<button>Compare the two that are ticked</button></form>'


def _row(one: IndexedRelease) -> str:
    row, release_id = one.row, html(one.row.release_id)
    box = f'<input type="checkbox" name="release" value="{release_id}" aria-label="Compare {release_id}">'
    report = f"dags/{DAG_PREFIX}{quote(row.config)}/releases/{quote(row.release_id)}/report"
    figures = "".join(f"<td>{_figures(one, labels)}</td>" for labels in _FIGURES.values())
    return (
        f'<tr><td>{box}</td><td><a href="{html(report)}"><code>{release_id}</code></a></td><td>{_model(row.model)}</td>'
        f"<td><code>{html(row.commit[:12])}</code></td><td>{time(row.resolved_at)}</td>"
        f'<td class="{html(row.verdict)}">{html(row.verdict or _OPEN)}</td><td>{html(row.reached)}</td>'
        f"<td>{_lines(f'{recipe} on {target}' for target, recipe in one.recipes.items())}</td>{figures}"
        f"<td>{html(one.cost.in_words(one.currency))}</td><td>{_lines(one.decided)}</td></tr>"
    )


def _model(model: str) -> str:
    """A link to all releases of the model: its history."""
    return f'<a href="releases?{html(urlencode({"text": model}))}">{html(model)}</a>'


def _figures(one: IndexedRelease, labels: Mapping[str, str]) -> str:
    told = []
    for figure in one.figures:
        label, _, of = figure.label.partition(", ")
        if label in labels:
            told.append(f"{figure.value} ({', '.join(filter(None, (of, labels[label])))})")
    return _lines(told)


def _lines(texts: Iterable[str]) -> str:
    return "<br>".join(html(text) for text in texts)


def watches_table(watches: Iterable[tuple[ReleaseConfig, WatchStatus | None]]) -> str:
    """What is watched on the hub, and what each watch decided last; None before its first look."""
    heads = ("release config", "model", "revision", "commit seen", "decision", "since", "checked")
    return table("Watched on the hub", heads, (_watch(config, last) for config, last in watches))


def _watch(config: ReleaseConfig, last: WatchStatus | None) -> str:
    commit, words = (last.commit[:12], last.words) if last else ("", _NOT_LOOKED)
    since, checked_at = (last.since, last.checked_at) if last else (None, None)
    return (
        f"<tr><td>{html(config.name)}</td><td>{html(config.model.id)}</td>"
        f"<td><code>{html(config.model.revision)}</code></td><td><code>{html(commit)}</code></td>"
        f"<td>{html(words)}</td><td>{time(since)}</td><td>{time(checked_at)}</td></tr>"
    )


def problem_list(title: str, problems: Iterable[str]) -> str:
    """What is wrong, each once; nothing without problems."""
    items = "".join(f"<li>{html(problem)}</li>" for problem in dict.fromkeys(problems))
    return f'<h2>{title}</h2><ul class="problem">{items}</ul>' if items else ""


def side_by_side(first: IndexedRelease, second: IndexedRelease, comparison: Comparison | None) -> str:
    """Two releases: what they are, their gates and figures in rows, then what differs in all that they read and made.

    Args:
        first: On the left.
        second: On the right.
        comparison: None for releases in two stores, which only their figures can be compared of.
    """
    both = (first, second)
    facts: dict[str, Callable[[IndexedRelease], str]] = {
        "model": lambda one: one.row.model,
        "commit": lambda one: one.row.commit,
        "created": lambda one: time(one.row.resolved_at),
        "verdict": lambda one: one.row.verdict or _OPEN,
        "recipe": lambda one: ", ".join(f"{recipe} on {target}" for target, recipe in one.recipes.items()),
        "cost": lambda one: one.cost.in_words(one.currency),
        "decided": lambda one: "; ".join(one.decided),
    }
    heads = ("field", html(first.row.release_id), html(second.row.release_id))
    gates = dict.fromkeys(gate for one in both for gate in one.verdicts)
    labels = dict.fromkeys(figure.label for one in both for figure in one.figures)
    body = table("The releases", heads, (_both(name, *map(fact, both)) for name, fact in facts.items()))
    body += table("Gates", heads, (_both(gate, *(one.verdicts.get(gate, "") for one in both)) for gate in gates))
    body += table("Figures", heads, (_both(label, *(_figure(one, label) for one in both)) for label in labels))
    if comparison is None:
        return f"{body}<p>They are in two stores: their configs are not compared.</p>"
    for section in comparison.sections:
        rows = (_both(one.path, _shown(one.before), _shown(one.after)) for one in section.changes)
        body += table(section.title, heads, rows) or f"<p>{html(section.title)}: {html(section.note)}</p>"
    return body


def _both(name: str, first: str, second: str) -> str:
    values = "".join(f'<td class="{html(value)}">{html(value)}</td>' for value in (first, second))
    return f'<tr><th scope="row">{html(name)}</th>{values}</tr>'


def _figure(one: IndexedRelease, label: str) -> str:
    return "; ".join(f"{figure.value}: {figure.note}" for figure in one.figures if figure.label == label)


def _shown(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
