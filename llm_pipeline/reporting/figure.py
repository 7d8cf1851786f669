"""Matplotlib figures as inline SVG: text stays text, and colours are CSS variables that follow light and dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llm_pipeline.base.untrusted_text import html
from llm_pipeline.base.verdict import Verdict

_COLOURS = {
    "ink": "#010203",
    "muted": "#010204",
    "grid": "#010205",
    "surface": "#010206",
    "baseline": "#010207",
    "candidate": "#010208",
    "good": "#010209",
    "bad": "#01020a",
    "unsure": "#01020b",
    "band": "#01020c",
}
"""Plot roles and the placeholder colour that stands for each until the SVG is written."""

VERDICT_ROLE = {
    Verdict.GO: "good",
    Verdict.NO_GO: "bad",
    Verdict.INCONCLUSIVE: "unsure",
    Verdict.ANOMALOUS: "unsure",
    None: "muted",
}
"""The plot role of a verdict; None: there is none."""

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "svg.hashsalt": "llm-pipeline",
    "font.family": "sans-serif",
    "font.size": 10.5,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "hatch.linewidth": 1.2,
    "text.color": _COLOURS["ink"],
    "axes.titlecolor": _COLOURS["ink"],
    "axes.labelcolor": _COLOURS["muted"],
    "axes.edgecolor": _COLOURS["muted"],
    "xtick.color": _COLOURS["muted"],
    "ytick.color": _COLOURS["muted"],
    "grid.color": _COLOURS["grid"],
    "axes.facecolor": "none",
    "legend.labelcolor": _COLOURS["ink"],
}


def colour(role: str) -> str:
    """The placeholder of a role, for matplotlib.

    Raises:
        KeyError: There is no such role.
    """
    return _COLOURS[role]


def legend_below(figure: Any, axes: Any) -> None:
    """The legend outside the axes, where it can cover no curve."""
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=9, handlelength=1.8, columnspacing=1.4)


def milliseconds_axis(axis: Any) -> None:
    """A logarithmic axis of milliseconds, with its numbers in full."""
    axis.get_major_locator().set_params(subs=(1.0, 2.0, 5.0))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(lambda _value, _: "")


@dataclass(frozen=True)
class Plot:
    """A finished plot.

    Attributes:
        name: Unique in a report; the ids within start with it.
        title: Read by screen readers first, and shown as the caption.
        description: What the plot shows, in words and figures.
        svg: Inline SVG.
    """

    name: str
    title: str
    description: str
    svg: str


def draw_plot(
    name: str, title: str, description: str, draw: Callable[[Any], None], *, size: tuple[float, float]
) -> Plot:
    """Draw a figure of `size` inches; `draw` is given the empty one.

    Nothing global is changed and no window system is needed.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        figure.patch.set_alpha(0.0)
        draw(figure)
        stream = io.StringIO()
        FigureCanvasSVG(figure).print_svg(stream, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    prefix = re.sub(r"[^A-Za-z0-9]+", "-", name)
    return Plot(name, title, description, _inline(stream.getvalue(), prefix, title, description))


def _inline(svg: str, name: str, title: str, description: str) -> str:
    """Turn a stand-alone SVG file into an inline, accessible, themed one without any outside reference."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", body)
    body = body.replace("xlink:href", "href")
    body = _numbered_ids(body, name)
    body = re.sub(r"\s*font-family: [^;\"<>]*;?", "", body)
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)
    for role, placeholder in _COLOURS.items():
        body = body.replace(placeholder, f"var(--plot-{role})")
    opening = re.compile(r"<svg [^>]*?viewBox=\"([^\"]+)\"[^>]*>", re.DOTALL)
    label = f'<title id="{name}-title">{html(title)}</title><desc id="{name}-desc">{html(description)}</desc>'
    head = rf'<svg viewBox="\1" role="img" aria-labelledby="{name}-title {name}-desc">'
    return opening.sub(lambda match: match.expand(head) + label, body, count=1)


def _numbered_ids(body: str, name: str) -> str:
    """Number the ids that are referred to and drop all others: matplotlib's depend on last digits of the layout."""
    referred = dict.fromkeys(re.findall(r'(?:url\(|href=")#([^)"]+)', body))
    numbers = {old: f"{name}-{number}" for number, old in enumerate(referred)}
    body = re.sub(r'\s\bid="([^"]+)"', lambda m: f' id="{numbers[m[1]]}"' if m[1] in numbers else "", body)
    return re.sub(r'(url\(|href=")#([^)"]+)', lambda m: f"{m[1]}#{numbers[m[2]]}", body)
