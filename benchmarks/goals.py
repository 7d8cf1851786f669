"""Goals of a benchmark: one printed line each; a benchmark exits with 1 when one is missed."""

from __future__ import annotations


def at_most(name: str, measured: float, target: float, unit: str = "") -> bool:
    """Print a goal whose measure must not be larger than its target."""
    return goal(name, _with_unit(measured, unit), f"at most {target:g}{_space(unit)}", met=measured <= target)


def at_least(name: str, measured: float, target: float, unit: str = "") -> bool:
    """Print a goal whose measure must not be smaller than its target."""
    return goal(name, _with_unit(measured, unit), f"at least {target:g}{_space(unit)}", met=measured >= target)


def goal(name: str, measured: str, target: str, *, met: bool) -> bool:
    """Print a goal; returns whether it was met."""
    print(f"GOAL {name}: measured {measured}, target {target}: {'met' if met else 'missed'}", flush=True)
    return met


def _with_unit(measured: float, unit: str) -> str:
    return f"{measured:.3g}{_space(unit)}"


def _space(unit: str) -> str:
    return f" {unit}" if unit else ""
