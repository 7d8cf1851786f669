"""Rules of a model's files: versions, links, and the code of python models."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from llm_pipeline.artifacts.repository_layout import MODEL_FILE
from llm_pipeline.base.directory_listing import refuse_unreadable
from llm_pipeline.serving.lint.finding import Finding
from llm_pipeline.serving.lint.repository import ModelSource, Repository, is_version


def file_rules(model: ModelSource, _: Repository) -> Iterator[Finding]:
    """Version directories and links."""
    yield from _versions(model)
    for path in sorted(_links(model.directory)):
        yield model.file_finding(
            str(path.relative_to(model.directory)),
            "symbolic_link",
            "a link: copies and digests of the repository do not hold what it points to",
            "put the file itself here, or name its path in a parameter",
            "warning",
        )


def _versions(model: ModelSource) -> Iterator[Finding]:
    versions = model.versions
    others = [entry.name for entry in model.directory.iterdir() if entry.is_dir() and not is_version(entry.name)]
    if not versions:
        tried = f" (not one: {', '.join(sorted(others))})" if others else ""
        reason = "an ensemble needs one too, although it is empty" if model.is_ensemble else "the server finds nothing"
        fix = f"make {model.name}/1" + ("; git keeps no empty directory: put a .gitkeep in it" * model.is_ensemble)
        yield model.file_finding("", "no_version", f"there is no version directory{tried}: {reason}", fix)
    asked = [str(version) for version in model.config.version_policy.specific.versions]
    if missing := [version for version in asked if version not in {path.name for path in versions}]:
        yield model.finding(
            "missing_version",
            f"version_policy asks for versions {', '.join(missing)}, which have no directory",
            "add them, or take them out of the policy",
            model.field_line("version_policy"),
        )
    if model.config.backend == "python" and not model.config.default_model_filename:
        for version in versions:
            if not (version / MODEL_FILE).is_file():
                message = "a python model without its code"
                yield model.file_finding(f"{version.name}/{MODEL_FILE}", "missing_file", message, "add the file")


def _links(directory: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(directory, onerror=refuse_unreadable):
        yield from (path for name in (*folders, *files) if (path := Path(folder, name)).is_symlink())
