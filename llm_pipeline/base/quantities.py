"""Durations and sizes as people read them; the numbers that decide are never rounded, only these texts are."""

from __future__ import annotations

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
_TENTHS_BELOW_SECONDS = 10.0
_UNITS = ("B", "kB", "MB", "GB", "TB")
_ROUNDED_TO_THREE_DIGITS = 999.5
_THREE_DIGITS = 100.0
_NO_DATA = "\N{EN DASH}"


def duration(seconds: float) -> str:
    """Seconds as `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min` or `3 d 4 h`."""
    if seconds < _TENTHS_BELOW_SECONDS:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return _two(whole, _MINUTE, "min", 1.0, "s")
    return _two(whole, _HOUR, "h", _MINUTE, "min") if whole < _DAY else _two(whole, _DAY, "d", _HOUR, "h")


def points(fraction: float) -> str:
    """A difference of fractions in percentage points, signed: 0.0058 is `+0.58`."""
    return f"{100 * fraction:+.2f}"


def measure(value: float | None, unit: str) -> str:
    """A measured value in its unit: percent for a fraction, points for a `fraction lost`; a dash when there is none."""
    if value is None:
        return _NO_DATA
    if unit == "fraction":
        return f"{100 * value:.2f} %"
    if unit == "fraction lost":
        return f"{points(value)} points"
    if unit == "bytes":
        return byte_size(value)
    if unit in ("ms", "milliseconds"):
        return f"{value:,.0f} ms" if abs(value) >= _THREE_DIGITS else f"{value:.3g} ms"
    text = f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"
    return f"{text} {unit}".rstrip()


def _two(whole: int, large: float, large_name: str, small: float, small_name: str) -> str:
    rest = int(whole % large // small)
    return f"{int(whole // large):,} {large_name}" + (f" {rest} {small_name}" if rest else "")


def byte_size(count: float) -> str:
    """Bytes in decimal units, as disks and hubs count them, to three digits: `12 B`, `5.7 GB`, `141 GB`."""
    value, unit = float(count), _UNITS[0]
    for unit in _UNITS:
        if abs(value) < _ROUNDED_TO_THREE_DIGITS:
            return f"{value:.3g} {unit}"
        value /= 1000.0
    return f"{1000.0 * value:,.0f} {unit}"
