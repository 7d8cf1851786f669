"""One piece of the transfer benchmark's work by this package, in a process of its own that can be timed.

python benchmarks/transfer_work.py download HUB MODEL DIRECTORY
python benchmarks/transfer_work.py publish STORE DIRECTORY
python benchmarks/transfer_work.py fetch STORE DIGEST
python benchmarks/transfer_work.py verify STORE DIGEST

STORE is a store's configuration as JSON. The answer is a line of JSON: the artifact's digest, where there is one, and
the largest memory that this process held.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

KIND = "checkpoint"


def download(endpoint: str, model_id: str, directory: str) -> None:
    """Resolve and download a model, verified."""
    from llm_pipeline.config.deployment import HubAccess
    from llm_pipeline.config.store import store_settings
    from llm_pipeline.hub.download import download_model
    from llm_pipeline.hub.sources import open_source

    source = open_source("hub", HubAccess(endpoint=endpoint), store_settings(uri="file:///unused"))
    download_model(source, source.resolve(model_id, "main"), Path(directory))


def with_store(name: str, settings: str, what: str) -> str:
    """Make a directory an artifact, bring one to this machine, or read and hash every byte of one; gives its digest."""
    from llm_pipeline.base.records import ArtifactRef
    from llm_pipeline.config.store import store_settings
    from llm_pipeline.store import open_store

    store = open_store(store_settings(**json.loads(settings)))
    if name == "publish":
        return store.publish(KIND, Path(what)).digest
    ref = ArtifactRef(kind=KIND, digest=what)
    if name == "fetch":
        store.fetch(ref)
    elif found := store.verify(ref):
        raise SystemExit(f"not whole: {found[:3]}")
    return what


if __name__ == "__main__":
    _, name, *arguments = sys.argv
    digest = download(*arguments) if name == "download" else with_store(name, *arguments)
    status = Path("/proc/self/status").read_text()  # getrusage counts from the peak of whoever started us
    kilobytes = int(status.partition("VmHWM:")[2].split()[0])
    print(json.dumps({"digest": digest, "peak_bytes": kilobytes * 1024}))
