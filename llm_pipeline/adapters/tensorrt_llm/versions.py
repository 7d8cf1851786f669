"""Whether a target's version of TensorRT-LLM is known, compiles engines, and is what its container holds. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from llm_pipeline.catalog.runtime_versions import parse_version, release_numbers, version_order
from llm_pipeline.catalog.tables import containers, find_container, runtime_releases
from llm_pipeline.config.target import Target
from llm_pipeline.planning.compatibility import Refused

_RELEASE_REPOSITORY = "nvcr.io/nvidia/tensorrt-llm/release"
"""NVIDIA's own images of TensorRT-LLM, whose tags are versions."""

_LISTED_REPOSITORY = "nvcr.io/nvidia/tritonserver"
"""NVIDIA's images of Triton, whose tags are all in our tables."""


def version_refusal(target: Target) -> Refused | None:
    """Why nothing can be built or served with a target's version and container.

    The version is none, or of a minor release that no table knows; has no compiler, which upstream removed in 1.3; or
    the container holds another one, or NVIDIA has no such tag.
    """
    version = target.runtime_version or ""
    nearest = _nearest_version(version)
    if release_numbers(nearest) != release_numbers(version):
        return Refused(reason=f"TensorRT-LLM {version} is not a known version", nearest=f"runtime_version: {nearest}")
    if target.engine == "tensorrt_llm_engine" and not _compiles(version):
        newest = [known for known in runtime_releases() if _compiles(known)][-1]
        reason = f"engine tensorrt_llm_engine is for TensorRT-LLM 1.0 to 1.2.x, which has a compiler, not {version}"
        return Refused(reason=reason, nearest=f"engine: tensorrt_llm_llmapi, or runtime_version: {newest}")
    image, inside = _container(target)
    if inside == version or (inside is None and image.partition(":")[0] != _LISTED_REPOSITORY):
        return None
    right = [known.image for known in containers() if known.tensorrt_llm == version]
    reason = f"container {image} holds TensorRT-LLM {inside}" if inside else f"container {image} is not a known one"
    nearest = f"container: {right[0]}" if right else f"runtime_version: {inside or containers()[0].tensorrt_llm}"
    return Refused(reason=f"{reason}, runtime_version is {version}", nearest=nearest)


def version_warnings(target: Target) -> Iterator[str]:
    """What to know of a version that is not in our tables, and of a container that is neither NVIDIA's nor a mirror."""
    version = target.runtime_version or ""
    if (nearest := _nearest_version(version)) != version:
        yield f"TensorRT-LLM {version} is not in our tables and taken for {nearest}"
    image, inside = _container(target)
    if not inside:
        yield f"container {image} is not in our tables: that it holds TensorRT-LLM {version} is not checked here"


def _compiles(version: str) -> bool:
    return (1, 0) <= release_numbers(version) <= (1, 2)


def _nearest_version(version: str) -> str:
    """The version itself if it is known, else the newest known one before it in its minor release, else the next."""
    known, asked = _known_versions(), parse_version(version)
    if version in known:
        return version
    if asked is None:
        return containers()[0].tensorrt_llm
    of_minor = [one for one in known if release_numbers(one) == release_numbers(version)]
    before = [one for one in of_minor or known if version_order(one) < asked]
    return before[-1] if before else (of_minor or known)[0]


@cache
def _known_versions() -> tuple[str, ...]:
    """Every version that is known as a release or to be in a container, oldest first."""
    known = {*runtime_releases(), *(one.tensorrt_llm for one in containers())}
    return tuple(sorted(known, key=version_order))


def _container(target: Target) -> tuple[str, str | None]:
    """The target's image with its tag, and the version of TensorRT-LLM in it, if its name or our tables say it."""
    image = (target.container or "").partition("@")[0]
    if known := find_container(image):
        return image, known.tensorrt_llm
    repository, _, tag = image.partition(":")
    return image, tag if repository == _RELEASE_REPOSITORY and parse_version(tag) else None
