"""The settings of a store in S3, and what opens it."""

from __future__ import annotations

from llm_pipeline.base.adapters import Adapter, OnCall
from llm_pipeline.config.store import S3Place, StoreModel


class BucketStore(S3Place, StoreModel):
    """A store in S3. Written as its URI alone, or with these fields."""


ADAPTER = Adapter(config=BucketStore, open=OnCall("llm_pipeline.adapters.s3.store:S3Store"))
