"""The two editions of the LLM args that are recorded, and how they spell the same thing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from llm_pipeline.base.errors import Unsupported
from llm_pipeline.config.runtime_options import SpeculativeMethod

_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:rc(\d+))?")
_FINAL = 10_000
"""Sorts a final release after all of its candidates."""

_FIRST_OF_MAIN = "1.3.0rc22"
_LAST_RECORDED = "1.3.0rc26"
"""The reference of 1.3.0rc27 has values that the recorded file of main lacks (`DFlash` drafts by `FA4`)."""


@dataclass(frozen=True, eq=False)
class Dialect:
    """One edition.

    Attributes:
        name: The versions that it stands for.
        schema: Name of its recorded schema.
        decoding_types: What it calls each way of speculative decoding.
        draft_length_keys: Its key for the number of draft tokens, where it is not `max_draft_len`.
        draft_model_key: Its key for the draft model's directory.
    """

    name: Literal["1.2.x", "main"]
    schema: str
    decoding_types: Mapping[SpeculativeMethod, str]
    draft_length_keys: Mapping[SpeculativeMethod, str]
    draft_model_key: str


_ONE_TWO = Dialect(
    name="1.2.x",
    schema="llm_args_1_2",
    decoding_types={"ngram": "NGram", "eagle": "Eagle", "mtp": "MTP", "draft_model": "DraftTarget"},
    draft_length_keys={"mtp": "num_nextn_predict_layers"},
    draft_model_key="speculative_model_dir",
)
_MAIN = Dialect(
    name="main",
    schema="llm_args_main",
    decoding_types={"ngram": "NGram", "eagle": "Eagle3", "mtp": "MTP", "draft_model": "Draft_Target"},
    draft_length_keys={},
    draft_model_key="speculative_model",
)
DIALECTS = (_ONE_TWO, _MAIN)


def dialect_of(version: str) -> Dialect:
    """The edition that a version of TensorRT-LLM reads.

    Raises:
        Unsupported: It is older than 1.0, or one of the candidates of 1.3 between the two editions.
    """
    release = _release(version)
    if release is not None and (1, 0) <= release[:2] <= (1, 2):
        return _ONE_TWO
    if release is not None and release >= _known(_FIRST_OF_MAIN):
        return _MAIN
    raise Unsupported(
        f"the LLM args of TensorRT-LLM {version} are not recorded",
        where="target.runtime_version",
        hint=f"use 1.2.1, or {_FIRST_OF_MAIN} or later",
    )


def edition_warnings(version: str) -> Iterator[str]:
    """What to know where the recorded edition is not of the very version."""
    if _known(version)[:2] < (1, 2):
        yield f"the LLM args were recorded for 1.2.x: {version} may lack some of them"
    if is_later_than_recorded(version):
        yield f"the LLM args were recorded before {version}, which may have dropped some of them"


def is_later_than_recorded(version: str) -> bool:
    """Whether a version may have LLM args that no recorded edition has."""
    return _known(version) > _known(_LAST_RECORDED)


def _release(version: str) -> tuple[int, int, int, int] | None:
    """`1.3.0rc22` as numbers that sort; None when it is no version."""
    found = _VERSION.match(version)
    if found is None:
        return None
    major, minor, patch, candidate = found.groups()
    return int(major), int(minor), int(patch or 0), int(candidate or _FINAL)


def _known(version: str) -> tuple[int, int, int, int]:
    release = _release(version)
    assert release is not None  # noqa: S101 - our own constants, and what has a dialect
    return release
