"""Errors and logs where Airflow calls us, whose handlers and levels are Airflow's business.

An error ends only the work that it hit, and the log has an unexpected one's traceback. Importing this module makes
HTTP and cloud libraries log warnings and errors only, as Airflow itself does with httpx, and cleans the text of their
records and of ours: no credentials, one line a record.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from llm_pipeline.base.errors import PipelineError, as_pipeline_error, is_unexpected, traceback_of
from llm_pipeline.base.logging import OURS, THIRD_PARTIES, Lines, clean_records, quiet_third_parties

quiet_third_parties()
clean_records((*(name for name in OURS if name != "__main__"), *THIRD_PARTIES), with_traceback=True)


def get_logger(name: str) -> logging.Logger:
    """A standard logger by the name of its module."""
    return logging.getLogger(name)


log = get_logger(__name__)


@contextmanager
def contained(what: str, consequence: str = "") -> Iterator[list[PipelineError]]:
    """End the block at an exception, and only the block; what is yielded then holds it as one of our errors.

    Args:
        what: Names the block's work in the log.
        consequence: What follows from the error, for the log; empty where the caller tells of it.
    """
    faults: list[PipelineError] = []
    try:
        yield faults
    except Exception as error:  # noqa: BLE001 - the edge: whatever it is becomes one of ours
        faults.append(known_fault(error, what))
        if consequence:
            log.warning("%s: %s", consequence, faults[0])


def known_fault(error: Exception, what: str) -> PipelineError:
    """An exception as one of our errors; a traceback is logged, without credentials, if it was none."""
    if is_unexpected(error):
        log.error("%s", Lines(f"{what} failed:\n{traceback_of(error)}"))
    return as_pipeline_error(error)
