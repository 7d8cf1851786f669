"""The plot of size and speed: every variant that was tried, beside the baseline and what was in production before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from llm_pipeline.base.quantities import byte_size
from llm_pipeline.reporting.figure import NARROW_INCHES, VERDICT_ROLE, Plot, colour, draw_plot, label_bar
from llm_pipeline.reporting.model import EngineSpeed, Variant

Rate = Callable[[EngineSpeed], float | None]


def plot_variants(variants: Sequence[Variant]) -> Plot:
    """Bars of checkpoint sizes, and for each target of the speeds that its builds measured, alone and batched."""
    targets = sorted({engine.target for variant in variants for engine in variant.engines})
    baseline = next((variant.bytes for variant in variants if variant.is_baseline), 0)
    row_inches = 0.36 + 0.08 * any(variant.origin for variant in variants)
    panel_inches = 0.45 + row_inches * len(variants)
    across = 3 if targets else 1

    def draw(figure: Any) -> None:
        panels = _panels(figure, len(targets), across)
        for axes, labelled in panels:
            _rows(axes, variants, labelled=labelled)
        _size_panel(panels[0][0], variants, baseline)
        for index, target in enumerate(targets):
            alone, together = panels[1 + 2 * index][0], panels[2 + 2 * index][0]
            _speed_panel(alone, variants, target, attrgetter("single_stream"), f"tokens/s, {target}, one request")
            _speed_panel(together, variants, target, attrgetter("batched"), _batched_title(variants, target))

    return draw_plot(
        "variants",
        "Size and speed of every variant",
        _in_words(variants, baseline),
        draw,
        size=(11.4, panel_inches * max(1, len(targets)) + 0.2),
        narrow_size=(6.4, panel_inches * (1 + 2 * len(targets)) + 0.2),
    )


def _panels(figure: Any, targets: int, across: int) -> list[tuple[Any, bool]]:
    """Size first, then two for each target; whether the panel names the rows. One below the other when narrow."""
    count = 1 + 2 * targets
    if figure.get_figwidth() < NARROW_INCHES:
        return [(axes, True) for axes in figure.subplots(count, 1, squeeze=False)[:, 0]]
    grid = figure.subplots(max(1, targets), across, squeeze=False)
    for row in grid[1:]:
        row[0].set_visible(False)
    speeds = [(axes, row > 0 and column == 0) for row in range(targets) for column, axes in enumerate(grid[row][1:])]
    return [(grid[0][0], True), *speeds]


def _rows(axes: Any, variants: Sequence[Variant], *, labelled: bool) -> None:
    names = [f"{variant.name} ✓" if variant.chosen else variant.name for variant in variants]
    axes.set_yticks(range(len(variants)), names if labelled else [""] * len(variants))
    for tick, variant in zip(axes.get_yticklabels(), variants, strict=True):
        tick.set(color=colour("ink"), weight="bold" if variant.chosen else "normal")
    axes.set_ylim(len(variants) - 0.5, -0.5)
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _size_panel(axes: Any, variants: Sequence[Variant], baseline: int) -> None:
    axes.barh(range(len(variants)), [v.bytes / 1e6 for v in variants], color=[_role(v) for v in variants], height=0.56)
    for row, variant in enumerate(variants):
        share = f" · {100 * variant.bytes / baseline:.0f} %" if baseline and not variant.is_baseline else ""
        label_bar(axes, variant.bytes / 1e6, row, byte_size(variant.bytes) + share, bold=variant.chosen)
    axes.set_xlim(0.0, 1.45 * max(variant.bytes for variant in variants) / 1e6)
    axes.set_title("checkpoint size")


def _role(variant: Variant) -> str:
    if variant.is_baseline or variant.is_reference:
        return colour("baseline")
    return colour(VERDICT_ROLE[variant.verdict])


def _speed_panel(axes: Any, variants: Sequence[Variant], target: str, rate: Rate, title: str) -> None:
    engines = [_engine(variant, target) for variant in variants]
    speeds = [(rate(engine) if engine else None) or 0.0 for engine in engines]
    colours = [colour("baseline" if v.is_baseline or v.is_reference else "candidate") for v in variants]
    axes.barh(range(len(variants)), speeds, color=colours, height=0.56)
    for row, (engine, speed) in enumerate(zip(engines, speeds, strict=True)):
        text = "not built" if engine is None else f"{speed:,.0f}" if speed else "not measured"
        label_bar(axes, speed, row, text, role="ink" if speed else "muted", bold=variants[row].chosen and bool(speed))
    axes.set_xlim(0.0, 1.3 * (max(speeds) or 1.0))
    axes.set_title(title)


def _engine(variant: Variant, target: str) -> EngineSpeed | None:
    return next((engine for engine in variant.engines if engine.target == target), None)


def _batched_title(variants: Sequence[Variant], target: str) -> str:
    """How many requests were batched, when all builds agree on it."""
    engines = [engine for variant in variants if (engine := _engine(variant, target)) is not None]
    numbers = {engine.sequences for engine in engines if engine.sequences}
    together = f"{next(iter(numbers))} together" if len(numbers) == 1 else "batched"
    return f"tokens/s, {target}, {together}"


def origins(variants: Sequence[Variant]) -> str:
    """Where the figures of the rows are from that this release did not measure."""
    return " ".join(f"{variant.name}: {variant.origin}." for variant in variants if variant.origin)


def _in_words(variants: Sequence[Variant], baseline: int) -> str:
    chosen = [variant for variant in variants if variant.chosen]
    return " ".join(_chosen_in_words(variant, baseline) for variant in chosen) or "No recipe was chosen."


def _chosen_in_words(chosen: Variant, baseline: int) -> str:
    share = f", {100 * chosen.bytes / baseline:.0f} % of the baseline" if baseline and not chosen.is_baseline else ""
    text = f"{chosen.name} was chosen: {byte_size(chosen.bytes)}{share}"
    return f"{text}{''.join(f'; {_speed_in_words(engine)}' for engine in chosen.engines)}."


def _speed_in_words(engine: EngineSpeed) -> str:
    if not engine.single_stream or not engine.batched:
        return f"its speed on {engine.target} was not measured"
    together = f"{engine.sequences} together" if engine.sequences else "batched"
    return (
        f"on {engine.target} {engine.single_stream:,.0f} tokens/s for one request, {engine.batched:,.0f} for {together}"
    )
