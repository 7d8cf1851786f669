"""The DAGs of this package as a DAG bundle, so that no file of it is copied into a DAGs folder.

    [dag_processor]
    dag_bundle_config_list = [{"name": "llm-pipeline", "classpath": "llm_pipeline_airflow.bundle.ReleaseDagBundle",
        "kwargs": {}}]

The release configs are where `[llm_pipeline] releases` says, each by its whole path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.local import LocalDagBundle

_INSTALLED = Path(__file__).parent / "dag_files"
_CHECKOUT = Path(__file__).parents[2] / "dags"


def shipped_dags() -> Path:
    """The package's DAG files: data of the wheel, or the repository's `dags/` in a clone."""
    return _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT


class ReleaseDagBundle(LocalDagBundle):
    """The DAG files of the installed package; a new version of the package brings new ones."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(path=str(shipped_dags()), **kwargs)
