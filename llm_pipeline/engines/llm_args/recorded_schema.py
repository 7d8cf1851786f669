"""The recorded schemas of the LLM args: two editions, and which versions of TensorRT-LLM each stands for.

Marks in the files say how certain a key is: `x-seen` and `x-read` that it was read in a neighbouring version only,
`x-open` that a class was not read, `x-status: deprecated` that it is about to be removed.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from llm_pipeline.base.errors import Unsupported
from llm_pipeline.catalog.runtime_versions import release_numbers, version_order

_FIRST_OF_MAIN = "1.3.0rc22"
_LAST_RECORDED = "1.3.0rc26"
"""The reference of 1.3.0rc27 has values that the recorded file of main lacks (`DFlash` drafts by `FA4`)."""

Node = dict[str, Any]
"""A schema or a part of one."""


Edition = Literal["1.2.x", "main"]
EDITIONS: dict[Edition, str] = {"1.2.x": "llm_args_1_2", "main": "llm_args_main"}
"""The recorded schemas by the versions that they stand for."""


def edition_of(version: str) -> Edition:
    """The edition that a version of TensorRT-LLM reads.

    Raises:
        Unsupported: It is older than 1.0, or one of the candidates of 1.3 between the two editions.
    """
    if (1, 0) <= release_numbers(version) <= (1, 2):
        return "1.2.x"
    if version_order(version) >= version_order(_FIRST_OF_MAIN):
        return "main"
    raise Unsupported(
        f"the LLM args of TensorRT-LLM {version} are not recorded",
        where="target.runtime_version",
        hint=f"runtime_version: 1.2.1, or {_FIRST_OF_MAIN} or later",
    )


def is_older_than_recorded(version: str) -> bool:
    """Whether a version may lack LLM args of its edition."""
    return release_numbers(version) < (1, 2)


def is_later_than_recorded(version: str) -> bool:
    """Whether a version may have LLM args that no recorded edition has."""
    return version_order(version) > version_order(_LAST_RECORDED)


@cache
def recorded_schema(edition: Edition) -> Node:
    """The schema that is recorded for an edition: a JSON schema, draft 2020-12."""
    path = files("llm_pipeline.engines.llm_args").joinpath("data", f"{EDITIONS[edition]}.json")
    schema: Node = json.loads(path.read_text(encoding="utf-8"))
    return schema
