"""What an Airflow installation says of this package: the section `[llm_pipeline]` of airflow.cfg, or its environment.

    [llm_pipeline]
    releases = /srv/team-a/releases, /srv/team-b/releases

`AIRFLOW__LLM_PIPELINE__RELEASES` says the same. `provider.py` lists every option for `airflow config list`. Each
release config that is found there has a DAG of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from airflow.sdk.configuration import conf

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.files import yaml_files
from llm_pipeline_airflow.links import DAG_PREFIX

SECTION = "llm_pipeline"
RELEASES_DEFAULT = "releases, configs/releases"
RELEASES_HINT = "set [llm_pipeline] releases in airflow.cfg, or AIRFLOW__LLM_PIPELINE__RELEASES"

log = get_logger(__name__)


def release_folders(dag_file: str | Path | None = None) -> tuple[Path, ...]:
    """The folders with release configs, each once.

    Relative paths of the option are looked for beside the DAG file, then in the directories above it, up to the first
    that has any of them: so every DAG bundle has its own, whatever version of it is checked out.

    Args:
        dag_file: The DAG file that asks; None for all that belong to any DAG bundle of this installation.
    """
    bundles = conf.get("dag_processor", "dag_bundle_config_list", fallback=""), conf.get("core", "dags_folder")
    starts = _paths_of(*bundles) if dag_file is None else (Path(dag_file).resolve().parent,)
    named = [Path(text).expanduser() for text in _named()]
    relative = [path for path in named if not path.is_absolute()]
    nearest = (folder for start in starts for folder in _nearest(start, relative))
    return tuple(dict.fromkeys([*(path for path in named if path.is_absolute()), *nearest]))


def release_configs(folders: tuple[Path, ...] | None = None) -> list[Path]:
    """The release configs in folders, or in all of this installation."""
    return [path for folder in (release_folders() if folders is None else folders) for path in yaml_files(folder)]


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


def require_folders(folders: tuple[Path, ...]) -> None:
    """Refuse an installation without release configs.

    Raises:
        ConfigError: No folder was found, or one that is named by its whole path is missing.
    """
    if not folders:
        problem = f"there is no directory of release configs: neither {' nor '.join(_named())}"
        raise ConfigError(f"{problem} is beside this DAG file or above it", hint=RELEASES_HINT)
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError("there is no such directory of release configs", where=str(folder), hint=RELEASES_HINT)


def _named() -> list[str]:
    text = conf.get(SECTION, "releases", fallback="") or RELEASES_DEFAULT
    return [name for name in re.split(r"\s*[,\n]\s*", text.strip()) if name]


def _nearest(start: Path, relative: Sequence[Path]) -> list[Path]:
    levels = ([above / path for path in relative if (above / path).is_dir()] for above in (start, *start.parents))
    return next((found for found in levels if found), [])


@lru_cache(maxsize=8)
def _paths_of(_bundles: str, _dags_folder: str) -> tuple[Path, ...]:
    """Where the DAG bundles of a configuration are on this machine; one that cannot be had is left out, and logged."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    manager = DagBundlesManager()  # type: ignore[no-untyped-call]
    found = []
    for name in manager.get_all_bundle_names():
        try:
            found.append(manager.get_bundle(name).path.resolve())
        except Exception as error:  # noqa: BLE001 - a bundle may be of any class; the others' releases are shown
            log.warning("the DAG bundle %s cannot be read here: %s", name, type(error).__name__)
    return tuple(found)
