"""When Airflow tries a stage again: the family of the error decides, never its message."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

RETRIES = 3
FIRST_DELAY = timedelta(seconds=10)
LONGEST_DELAY = timedelta(minutes=10)


def error_family_policy() -> ExceptionRetryPolicy:
    """Transient errors are tried again, with Airflow's exponential back-off; terminal ones never are."""
    return ExceptionRetryPolicy(
        rules=[
            RetryRule(
                exception="llm_pipeline.errors.Transient",
                action=RetryAction.RETRY,
                reason="a transient error: it may pass when tried again",
            ),
            RetryRule(
                exception="llm_pipeline.errors.Terminal",
                action=RetryAction.FAIL,
                reason="a terminal error: trying again cannot help",
            ),
            RetryRule(
                exception=[ValueError, TypeError, LookupError, AttributeError],
                action=RetryAction.FAIL,
                reason="a fault of the program: trying again cannot help",
            ),
        ]
    )
