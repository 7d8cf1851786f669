"""Versions such as TensorRT-LLM's and vLLM's, and their order."""

from __future__ import annotations

import re
from math import inf
from typing import NamedTuple

_VERSION = re.compile(r"(\d+(?:\.\d+)+)(?:rc(\d+))?(?:\.?post(\d+))?")


class Version(NamedTuple):
    """A version, in the order of releases: candidates come before their release, post releases after it."""

    numbers: tuple[int, ...]
    candidate: float
    post: int


def parse_version(version: str) -> Version | None:
    """A version such as `1.3.0rc22` or `1.0.3.2510`; None when it is none."""
    found = _VERSION.fullmatch(version)
    if not found:
        return None
    numbers = tuple(int(number) for number in found[1].split("."))
    return Version(numbers, int(found[2]) if found[2] else inf, int(found[3] or 0))


def release_numbers(version: str) -> tuple[int, int]:
    """Major and minor number of a version; (0, 0) when it is none."""
    parsed = parse_version(version)
    return (parsed.numbers[0], parsed.numbers[1]) if parsed else (0, 0)


def version_order(version: str) -> Version:
    """What versions sort by; what is none comes first."""
    return parse_version(version) or Version((), 0.0, 0)
