"""Unexpected errors where Airflow calls us: their traceback is logged, and they end only the one thing they hit."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from llm_pipeline.base.errors import PipelineError, as_pipeline_error, is_unexpected, traceback_of
from llm_pipeline.base.logging import Lines
from llm_pipeline_airflow.logs import get_logger

_P = ParamSpec("_P")
_T = TypeVar("_T")

log = get_logger(__name__)


def attempt(what: str, work: Callable[_P, _T], *arguments: _P.args, **options: _P.kwargs) -> _T | PipelineError:
    """What the work returns for the arguments, or what went wrong as one of our errors.

    Args:
        what: Names the work in the log.
        work: Called once.
        arguments: Of the work.
        options: Of the work.
    """
    try:
        return work(*arguments, **options)
    except Exception as error:  # noqa: BLE001 - the edge: whatever it is becomes one of ours
        return known_fault(error, what)


def known_fault(error: Exception, what: str) -> PipelineError:
    """An exception as one of our errors; a traceback is logged, without credentials, if it was none."""
    if is_unexpected(error):
        log.error("%s", Lines(f"{what} failed:\n{traceback_of(error)}"))
    return as_pipeline_error(error)
