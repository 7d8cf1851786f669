"""What a server needs of a model repository before it starts: linked artifacts, and a host that fits.

`links.json` maps a directory inside the repository to an artifact's kind and digest, so that no weights are copied.
Before a server starts, they are fetched from the store, verified, and given to `start_server` as local directories.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from pydantic import TypeAdapter, ValidationError

from llm_pipeline.artifacts import engine_description
from llm_pipeline.artifacts.engine_description import ENGINE_FILE, EngineDescription
from llm_pipeline.artifacts.repository_layout import ENGINE_DIRECTORY, LINKS_FILE, MODEL_NAME, MODEL_VERSION
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.store.artifact_store import ArtifactStore

_LINKS = TypeAdapter(dict[str, ArtifactRef])


def write_links(repository: Path, links: Mapping[str, ArtifactRef]) -> None:
    """Write the links of a repository; no file for none."""
    if links:
        document = {name: ref.model_dump(mode="json") for name, ref in links.items()}
        (repository / LINKS_FILE).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read_links(repository: Path) -> dict[str, ArtifactRef]:
    """The links of a repository; none without the file.

    Raises:
        IntegrityError: The file is damaged, or a link leads out of the repository.
    """
    path = repository / LINKS_FILE
    try:
        links = _LINKS.validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValidationError as error:
        raise IntegrityError(f"not a list of links: {error}", where=str(path)) from error
    for name in links:
        if name.startswith("/") or not PurePosixPath(name).parts or {"..", "."} & set(name.split("/")):
            raise IntegrityError(f"the link {name!r} leads out of the repository", where=str(path))
    return links


def fetch_links(repository: Path, store: ArtifactStore) -> dict[str, Path]:
    """Verified local directories of everything that a repository links to, by where they belong in it.

    Raises:
        IntegrityError: An artifact is missing or damaged.
    """
    return {name: store.fetch(ref) for name, ref in read_links(repository).items()}


def refuse_other_host(repository: Path) -> None:
    """Refuse a repository whose engine was built for another kind of host; without a description it may go anywhere.

    Raises:
        IntegrityError: The engine's description is damaged.
        Unsupported: The host differs; every difference is named.
        Transient: The host's driver does not answer.
    """
    engine = repository / MODEL_NAME / str(MODEL_VERSION) / ENGINE_DIRECTORY
    if (engine / ENGINE_FILE).is_file():
        engine_description.refuse_other_host(EngineDescription.read(engine))
