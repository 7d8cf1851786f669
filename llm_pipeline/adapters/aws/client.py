"""Clients of Amazon's services for routers and metric sources; their errors are left to those."""

from __future__ import annotations

import importlib.util
from typing import Any

from llm_pipeline.base.bounded_aws import AnswerLimits, bound_answers
from llm_pipeline.base.errors import ConfigError, Unsupported

_CONNECT_SECONDS = 3
_LIMITS = AnswerLimits(headers_seconds=10.0, whole_seconds=30.0, posted_seconds=30.0)
_ATTEMPTS = 3


def aws_client(service: str, region: str | None, endpoint_url: str | None, *, where: str) -> Any:
    """A boto3 client with AWS's usual chain of credentials; it gives up soon, since its caller asks again.

    Raises:
        Unsupported: boto3 is not installed in this interpreter.
        ConfigError: The region or the endpoint cannot be.
    """
    if importlib.util.find_spec("boto3") is None:
        raise Unsupported(f"{service} needs boto3", where=where, hint="pip install 'llm-pipeline[store-s3]'")
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    options = Config(
        connect_timeout=_CONNECT_SECONDS,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
    )
    try:
        client = boto3.Session(region_name=region).client(service, endpoint_url=endpoint_url, config=options)
        return bound_answers(client, _LIMITS)
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(str(error), where=where, hint="set region, or AWS_REGION and AWS_PROFILE") from error
