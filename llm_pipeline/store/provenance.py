"""Where an artifact came from, in the field's form: an in-toto statement with a SLSA provenance predicate.

Forms: https://in-toto.io/Statement/v1 and https://slsa.dev/provenance/v1. The statement is an artifact's
manifest; its subjects are the artifact's files.
"""

from __future__ import annotations

import getpass
import os
import platform
import re
import socket
import subprocess
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import Field, JsonValue

from llm_pipeline import __version__
from llm_pipeline.base.records import ArtifactRef, Frozen

PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
CONTAINER_VARIABLE = "LLM_PIPELINE_CONTAINER"
"""Environment variable with the digest of the image that a stage runs in; whoever starts the container sets it."""

_BUILD_TYPE = "urn:llm-pipeline:stage"
_BUILDER = "urn:llm-pipeline:builder"
_IMAGE_DIGEST = re.compile(r"(?:^|@)sha256:(?P<sha256>[0-9a-f]{64})$")
_CHANGED = "-dirty"  # git's word for a working tree with changes


class Provenance(Frozen):
    """How an artifact was made; every field may be empty for one that was made by hand.

    Attributes:
        stage: Name and version of the stage, e.g. `quantize/3`.
        subject: The recipe or target it worked on.
        stage_key: The key that the result is found by.
        release_id: The release it was made for first.
        config: What the stage was told; it holds names of secrets' variables, never secrets.
        inputs: Artifacts it was made from.
        tools: Versions of the tools whose behaviour counts.
        made_by: User and host.
        container: Digest of the image it ran in; empty outside of images.
        source_commit: Git commit of this package's working tree; empty for an installed package.
        started_at: When the work began.
        finished_at: When it was published.
    """

    stage: str = ""
    subject: str = ""
    stage_key: str = ""
    release_id: str = ""
    config: dict[str, JsonValue] = Field(default={})
    inputs: dict[str, ArtifactRef] = Field(default={})
    tools: dict[str, str] = Field(default={})
    made_by: str = ""
    container: str = ""
    source_commit: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


def user_here() -> str:
    """`user@host` of this process, for records of who did something."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def here() -> dict[str, str]:
    """The facts of provenance that are the same for all a process makes."""
    return {
        "made_by": user_here(),
        "container": os.environ.get(CONTAINER_VARIABLE, ""),
        "source_commit": _source_commit(),
    }


@cache
def _source_commit() -> str:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def to_predicate(kind: str, made: Provenance) -> dict[str, Any]:
    """The SLSA predicate of an artifact."""
    return {
        "buildDefinition": {
            "buildType": f"{_BUILD_TYPE}:{made.stage}" if made.stage else _BUILD_TYPE,
            "externalParameters": {"subject": made.subject, "config": made.config},
            "internalParameters": {"kind": kind, "made": made.model_dump(mode="json")},
            "resolvedDependencies": [
                {"name": name, "uri": f"urn:llm-pipeline:artifact:{ref.kind}", "digest": {"sha256": ref.digest}}
                for name, ref in sorted(made.inputs.items())
            ],
        },
        "runDetails": {
            "builder": {
                "id": f"{_BUILDER}:{quote(made.made_by, safe='@')}" if made.made_by else _BUILDER,
                "version": {"llm_pipeline": __version__, "python": platform.python_version(), **made.tools},
                "builderDependencies": _builder_dependencies(made),
            },
            "metadata": {
                "invocationId": made.release_id,
                **({"startedOn": made.started_at.isoformat()} if made.started_at else {}),
                **({"finishedOn": made.finished_at.isoformat()} if made.finished_at else {}),
            },
        },
    }


def from_predicate(predicate: Mapping[str, Any]) -> tuple[str, Provenance]:
    """Kind and provenance of an artifact, from its predicate: the builder's own parameters hold it whole, if at all.

    Raises:
        KeyError, TypeError, ValueError: It does not have the shape that `to_predicate` writes.
    """
    internal = predicate["buildDefinition"]["internalParameters"]
    return internal["kind"], Provenance.model_validate(internal.get("made", {}))


def _builder_dependencies(made: Provenance) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if made.container:
        digest = _IMAGE_DIGEST.search(made.container)
        image = {"name": "container", "annotations": {"reference": made.container}}
        found.append(image | ({"digest": digest.groupdict()} if digest else {}))
    if made.source_commit:
        commit = made.source_commit.removesuffix(_CHANGED)
        annotations = {"changed": made.source_commit.endswith(_CHANGED)}
        found.append({"name": "source", "digest": {"gitCommit": commit}, "annotations": annotations})
    return found
