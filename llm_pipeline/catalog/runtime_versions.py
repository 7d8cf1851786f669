"""Versions of TensorRT-LLM: their order, the nearest known one, which compile engines, which container has which."""

from __future__ import annotations

import re
from functools import cache
from math import inf
from typing import NamedTuple

from llm_pipeline.catalog.tables import containers, find_container, runtime_releases

_VERSION = re.compile(r"(\d+(?:\.\d+)+)(?:rc(\d+))?(?:\.?post(\d+))?")
RELEASE_REPOSITORY = "nvcr.io/nvidia/tensorrt-llm/release"
"""NVIDIA's own images of TensorRT-LLM, whose tags are versions."""

_LISTED_REPOSITORY = "nvcr.io/nvidia/tritonserver"
"""NVIDIA's images of Triton, whose tags are all in our tables."""

_LAST_BUILT_FOR = (1, 2)
_FIRST_SUPPORTED = (1, 0)


class Version(NamedTuple):
    """A version, in the order of releases: candidates come before their release, post releases after it."""

    numbers: tuple[int, ...]
    candidate: float
    post: int


class Problem(NamedTuple):
    """What is wrong with a version or container, and the nearest thing that is not."""

    reason: str
    nearest: str


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


@cache
def known_versions() -> tuple[str, ...]:
    """Every version that is known as a release or to be in a container, oldest first."""
    known = {*runtime_releases(), *(one.tensorrt_llm for one in containers())}
    return tuple(sorted(known, key=version_order))


def nearest_version(version: str) -> str:
    """The version itself if it is known, else the newest known one before it in its minor release, else the next."""
    known, asked = known_versions(), parse_version(version)
    if version in known:
        return version
    if asked is None:
        return containers()[0].tensorrt_llm
    of_minor = [one for one in known if release_numbers(one) == release_numbers(version)]
    before = [one for one in of_minor or known if version_order(one) < asked]
    return before[-1] if before else (of_minor or known)[0]


def version_problem(version: str) -> Problem | None:
    """Why nothing can be said of a version: it is none, or of a minor release that no table knows."""
    nearest = nearest_version(version)
    if release_numbers(nearest) == release_numbers(version):
        return None
    return Problem(f"TensorRT-LLM {version} is not a known version", f"runtime_version: {nearest}")


def version_warning(version: str) -> str | None:
    """What to know of a version that our tables do not have themselves."""
    nearest = nearest_version(version)
    if nearest != version:
        return f"TensorRT-LLM {version} is not in our tables and taken for {nearest}"
    return None


def engine_problem(version: str) -> Problem | None:
    """Why no engines are built with a version: upstream removed the compiler in 1.3."""

    def compiles(version: str) -> bool:
        return _FIRST_SUPPORTED <= release_numbers(version) <= _LAST_BUILT_FOR

    if compiles(version):
        return None
    newest = [known for known in runtime_releases() if compiles(known)][-1]
    reason = f"engine tensorrt_llm_engine is for TensorRT-LLM 1.0 to 1.2.x, which has a compiler, not {version}"
    return Problem(reason, f"engine: tensorrt_llm_llmapi, or runtime_version: {newest}")


def container_problem(container: str, version: str) -> Problem | None:
    """Why a container cannot be the one that serves a version: it holds another, or NVIDIA has no such tag."""
    image = container.partition("@")[0]
    inside = version_inside(image)
    if inside == version or (inside is None and image.partition(":")[0] != _LISTED_REPOSITORY):
        return None
    right = [known.image for known in containers() if known.tensorrt_llm == version]
    reason = f"container {image} holds TensorRT-LLM {inside}" if inside else f"container {image} is not a known one"
    nearest = f"container: {right[0]}" if right else f"runtime_version: {inside or containers()[0].tensorrt_llm}"
    return Problem(f"{reason}, runtime_version is {version}", nearest)


def container_warning(container: str, version: str) -> str | None:
    """What to know of a container that is neither NVIDIA's nor a mirror of it."""
    image = container.partition("@")[0]
    if version_inside(image):
        return None
    return f"container {image} is not in our tables: that it holds TensorRT-LLM {version} is not checked here"


def version_inside(image: str) -> str | None:
    """The version of TensorRT-LLM in an image, if its name or our tables say it."""
    known = find_container(image)
    if known:
        return known.tensorrt_llm
    repository, _, tag = image.partition("@")[0].partition(":")
    return tag if repository == RELEASE_REPOSITORY and parse_version(tag) else None


def version_order(version: str) -> Version:
    """What versions sort by; what is none comes first."""
    return parse_version(version) or Version((), 0.0, 0)
