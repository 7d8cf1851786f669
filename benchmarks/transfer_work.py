"""One piece of the transfer benchmark's work by this package, in a process of its own that can be timed.

python benchmarks/transfer_work.py download HUB MODEL DIRECTORY
python benchmarks/transfer_work.py publish STORE DIRECTORY      # prints the artifact's digest
python benchmarks/transfer_work.py fetch STORE DIGEST
python benchmarks/transfer_work.py verify STORE DIGEST

STORE is a store's configuration as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

KIND = "checkpoint"


def download(endpoint: str, model_id: str, directory: str) -> None:
    """Resolve and download a model, verified."""
    from llm_pipeline.config.deployment import HubAccess
    from llm_pipeline.config.store import store_settings
    from llm_pipeline.hub.download import download_model
    from llm_pipeline.hub.sources import open_source

    source = open_source("hub", HubAccess(endpoint=endpoint), store_settings(uri="file:///unused"))
    download_model(source, source.resolve(model_id, "main"), Path(directory))


def publish(store: str, directory: str) -> None:
    """Make a directory an artifact."""
    print(_open(store).publish(KIND, Path(directory)).digest)


def fetch(store: str, digest: str) -> None:
    """Bring an artifact to this machine, verified."""
    from llm_pipeline.base.records import ArtifactRef

    print(_open(store).fetch(ArtifactRef(kind=KIND, digest=digest)))


def verify(store: str, digest: str) -> None:
    """Read and hash every byte of an artifact."""
    from llm_pipeline.base.records import ArtifactRef

    if found := _open(store).verify(ArtifactRef(kind=KIND, digest=digest)):
        raise SystemExit(f"not whole: {found[:3]}")


def _open(store: str) -> Any:
    from llm_pipeline.config.store import store_settings
    from llm_pipeline.store import open_store

    return open_store(store_settings(**json.loads(store)))


if __name__ == "__main__":
    _, name, *arguments = sys.argv
    {
        "download": download,
        "publish": publish,
        "fetch": fetch,
        "verify": verify,
    }[name](*arguments)
