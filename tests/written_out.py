"""The config files of a release with every default written out."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from llm_pipeline.release.loading import load_release


def write_out(configs: Path, release: str) -> dict[str, Any]:
    """Rewrite a release config of a directory, and what it names; the contents by name, without `.yaml`.

    Args:
        configs: A private copy of the committed configs.
        release: Name of the release config.
    """
    local = configs / "deployments" / "local.yaml"
    local.write_text(re.sub(r"\S+/bin/python", sys.executable, local.read_text()))
    loaded = load_release(configs / "releases" / f"{release}.yaml")
    named: dict[str, BaseModel] = {
        f"releases/{release}": loaded.config,
        f"policies/{loaded.config.policy}": loaded.release.policy,
        f"deployments/{loaded.config.deployment}": loaded.deployment,
        **{f"targets/{target.name}": target for target in loaded.release.targets},
    }
    contents: dict[str, Any] = {name: model.model_dump(mode="json") for name, model in named.items()}
    recipes = {f"quantization/{recipe.file_name}" for recipe in loaded.release.recipes}
    contents |= {name: yaml.safe_load((configs / f"{name}.yaml").read_text()) for name in sorted(recipes)}
    for name, content in contents.items():
        (configs / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return contents
