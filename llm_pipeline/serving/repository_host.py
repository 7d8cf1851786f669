"""Whether a model repository may be served on this host: asked before a server is started for it."""

from __future__ import annotations

from pathlib import Path

from llm_pipeline.artifacts import host_match
from llm_pipeline.artifacts.engine_description import ENGINE_FILE, EngineDescription
from llm_pipeline.artifacts.repository_layout import ENGINE_DIRECTORY, MODEL_NAME, MODEL_VERSION


def refuse_other_host(repository: Path) -> None:
    """Refuse a repository whose engine was built for another kind of host; one that does not say may go anywhere.

    Raises:
        IntegrityError: The engine's description is damaged.
        Unsupported: The host differs; every difference is named.
        Transient: The host's driver does not answer.
    """
    engine = repository / MODEL_NAME / str(MODEL_VERSION) / ENGINE_DIRECTORY
    if (engine / ENGINE_FILE).is_file():
        host_match.refuse_other_host(EngineDescription.read(engine))
