"""The artifact store in S3, or behind another server's S3 API."""

from __future__ import annotations

from pathlib import Path

from llm_pipeline.adapters.s3.adapter import BucketStore
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.cache import Cache
from llm_pipeline.store.s3_blobs import S3Blobs


class S3Store(ArtifactStore):
    """Keys are `<prefix>/artifacts/<kind>/<digest>/<path>` and `<prefix>/<document>`."""

    def __init__(self, config: BucketStore) -> None:
        bucket = S3Blobs(config)
        cache = Cache(Path(config.cache), bucket) if config.cache else None
        super().__init__(config.uri, bucket, config.signing, cache)
