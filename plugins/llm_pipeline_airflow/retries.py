"""When Airflow tries a stage again: the family of the error decides, never its message."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

from llm_pipeline_airflow.notifications import callbacks

_RETRIES = 3
_FIRST_DELAY = timedelta(seconds=10)
_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    TypeError,
    ValueError,
)
_LONGEST_DELAY = timedelta(minutes=10)


def task_defaults(owner: str) -> dict[str, Any]:
    """Arguments of all tasks of our DAGs: who owns them, when they are tried again, and who is told how they ended."""
    return {
        "owner": owner,
        "retries": _RETRIES,
        "retry_delay": _FIRST_DELAY,
        "retry_exponential_backoff": True,
        "max_retry_delay": _LONGEST_DELAY,
        "retry_policy": _error_family_policy(),
        **callbacks(),
    }


def _error_family_policy() -> ExceptionRetryPolicy:
    """Transient errors are tried again, with Airflow's exponential back-off; terminal ones never are."""
    return ExceptionRetryPolicy(
        rules=[
            RetryRule(
                exception="llm_pipeline.base.errors.Transient",
                action=RetryAction.RETRY,
                reason="a transient error: trying again may help",
            ),
            RetryRule(
                exception="llm_pipeline.base.errors.Terminal",
                action=RetryAction.FAIL,
                reason="a terminal error: trying again cannot help",
            ),
            RetryRule(
                exception=[*_FAULTS],
                action=RetryAction.FAIL,
                reason="a fault of the program: trying again cannot help",
            ),
        ]
    )
