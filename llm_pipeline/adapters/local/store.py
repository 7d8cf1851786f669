"""The artifact store on a local or shared POSIX file system."""

from __future__ import annotations

from llm_pipeline.adapters.local.directory import DirectoryStore
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.file_blobs import FileBlobs


class LocalStore(ArtifactStore):
    """Artifacts as directories, read where they are."""

    def __init__(self, settings: DirectoryStore | str) -> None:
        settings = DirectoryStore.model_validate(settings)
        self.root = settings.directory
        super().__init__(settings.uri, FileBlobs(self.root), settings.signing)
