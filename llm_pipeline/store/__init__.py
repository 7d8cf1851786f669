"""Immutable artifacts named by their content, and the small documents that point at them."""

from llm_pipeline.errors import Unsupported
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.local import LocalStore

__all__ = ["ArtifactStore", "LocalStore", "open_store"]


def open_store(uri: str) -> ArtifactStore:
    """The store of a URI.

    Raises:
        Unsupported: There is no store for the URI's scheme.
    """
    if uri.startswith("file://"):
        return LocalStore(uri)
    raise Unsupported(f"no artifact store for {uri!r}", hint="use file:///absolute/path")
