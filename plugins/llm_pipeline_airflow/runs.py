"""Which release a DAG run works on: a small document in the store, so that the report outlives Airflow's database."""

from __future__ import annotations

import re
from pathlib import Path

from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.config.store import StoreModel
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.store.signed_documents import replace_document
from llm_pipeline_airflow.links import DAG_PREFIX
from llm_pipeline_airflow.settings import RELEASES_HINT, release_configs, release_folders

_PLAIN = re.compile(r"[A-Za-z0-9_.:+-]")


def dag_id_of(config_path: Path) -> str:
    """The DAG of a release config."""
    return f"{DAG_PREFIX}{config_path.stem}"


def config_path_of(dag_id: str) -> Path:
    """The release config of a DAG.

    Raises:
        ConfigError: It is not a release's DAG, or its config is gone.
    """
    for path in release_configs():
        if dag_id_of(path) == dag_id:
            return path
    folders = ", ".join(map(str, release_folders()))
    raise ConfigError(f"{dag_id!r} is not the DAG of a release config", where=folders, hint=RELEASES_HINT)


def store_to_read(settings: StoreModel) -> ArtifactStore:
    """The store of a deployment, for a page that shows what is in it.

    Raises:
        Transient: It is a directory that this host does not have, so that nothing can be said of what is in it.
    """
    if settings.directory is not None and not settings.directory.is_dir():
        hint = "mount it on the API server's host; if no release was ever made, the first one makes it"
        raise Transient("this host has no such directory of a store", where=settings.uri, hint=hint)
    return open_store(settings)


def remember_run(store: ArtifactStore, dag_id: str, run_id: str, release_id: str) -> None:
    """Write down which release a run works on."""
    value = {"dag_id": dag_id, "run_id": run_id, "release_id": release_id}
    replace_document(store, _document_name(dag_id, run_id), value)


def release_of_run(store: ArtifactStore, dag_id: str, run_id: str) -> str | None:
    """The release of a run; None before its first stage has named it."""
    document = store.read_document(_document_name(dag_id, run_id))
    return str(document.value["release_id"]) if document else None


def _document_name(dag_id: str, run_id: str) -> str:
    return f"runs/{_safe(dag_id)}/{_safe(run_id)}.json"


def _safe(name: str) -> str:
    """The name with every character that is not plain in a file's name written as `@<hex>@`."""
    return "at_" + "".join(c if _PLAIN.fullmatch(c) else f"@{ord(c):x}@" for c in name)
