"""Measured quantities as people read them; the numbers that decide are never rounded, only these texts are."""

from __future__ import annotations

from llm_pipeline.base.quantities import byte_size

_NO_DATA = "\N{EN DASH}"


def points(fraction: float) -> str:
    """A difference of fractions in percentage points, signed: 0.0058 is `+0.58`."""
    return f"{100 * fraction:+.2f}"


def measure(value: float | None, unit: str) -> str:
    """A measured value in its unit; a dash when there is none."""
    if value is None:
        return _NO_DATA
    if unit == "fraction":
        return f"{100 * value:.2f} %"
    if unit == "bytes":
        return byte_size(value)
    if unit in ("ms", "milliseconds"):
        return f"{value:,.0f} ms" if abs(value) >= 100.0 else f"{value:.3g} ms"  # noqa: PLR2004 - three digits
    text = f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"
    return f"{text} {unit}".rstrip()
