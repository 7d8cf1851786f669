"""Which failures Airflow tries again: the family of the error decides, and a fault of the program never passes."""

from __future__ import annotations

import pytest
from airflow.sdk import RetryAction
from llm_pipeline_airflow.dag_options import task_defaults
from llm_pipeline_airflow.faults import Refused

from llm_pipeline.base.errors import ConfigError, InternalError, StageCrashed, Transient


@pytest.mark.parametrize(
    ("raised", "action"),
    [
        (Transient("throttled"), RetryAction.RETRY),
        (StageCrashed("killed"), RetryAction.RETRY),
        (ConfigError("wrong"), RetryAction.FAIL),
        (InternalError("a fault"), RetryAction.FAIL),
        (Refused("a person said no"), RetryAction.FAIL),
        (OverflowError("math range error"), RetryAction.FAIL),
        (RecursionError("too deep"), RetryAction.FAIL),
        (ModuleNotFoundError("No module named 'boto3'"), RetryAction.FAIL),
        (AssertionError(), RetryAction.FAIL),
        (OSError(5, "Input/output error"), RetryAction.DEFAULT),
        (MemoryError(), RetryAction.DEFAULT),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value.value,
)
def test_a_failure_is_tried_again_only_if_that_may_help(raised: BaseException, action: RetryAction) -> None:
    assert task_defaults("us")["retry_policy"].evaluate(raised, 1, 4).action is action
