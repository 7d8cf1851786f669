"""The frame of our pages: no script, nothing from outside, light and dark, wide and narrow."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from fastapi.responses import HTMLResponse

from llm_pipeline.base.errors import IntegrityError, InternalError, PipelineError
from llm_pipeline.base.untrusted_text import html

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
