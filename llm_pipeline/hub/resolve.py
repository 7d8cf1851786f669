"""From a branch or tag to a pinned model: one commit, and the files of it that we fetch, with their hashes."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from llm_pipeline.artifacts.model_files import Selection, select_files
from llm_pipeline.artifacts.pinned import PinnedModel
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.hub.access import Hub, RepositoryDisabled, RepositoryRenamed, listed_file, malformed_answer
from llm_pipeline.hub.model_card import stated_license

log = get_logger(__name__)


def resolve_revision(hub: Hub, model_id: str, revision: str = "main") -> PinnedModel:
    """`pin_revision`, and a line in the log of what was pinned."""
    model, selection = pin_revision(hub, model_id, revision)
    report_resolved(model, selection)
    return model


def pin_revision(hub: Hub, model_id: str, revision: str) -> tuple[PinnedModel, Selection]:
    """Pin a revision, choose its files, and check that they may be read.

    Raises:
        HubRefused: No such repository or revision, or no access to it.
        HubUnavailable: The hub cannot be asked now.
        Unsupported: No safetensors weights, or not a full model.
        IntegrityError: The listing is malformed, or names unsafe files.
    """
    where = f"{model_id}@{revision}"
    info = hub.information(model_id, revision, where, files_metadata=True)
    if info.disabled:
        raise RepositoryDisabled("the repository was disabled", where=where, hint="choose another repository")
    _require_same_name(info, model_id, where)
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or []}
    selection = select_files([sibling.rfilename for sibling in info.siblings or []], where=where)
    try:
        model = PinnedModel(
            id=model_id,
            commit=info.sha,
            files=tuple(listed_file(siblings[path]) for path in selection.fetched),
            license=stated_license(info.card_data.to_dict() if info.card_data else {}, info.tags or ()),
            gated=info.gated or None,
        )
    except ValidationError as error:
        raise malformed_answer(where, str(error)) from error
    _require_requested_commit(model, revision, where)
    smallest = min(model.files, key=lambda file: file.size)  # select_files refuses a repository without any
    hub.require_access(model, smallest, where)
    return model, selection


def _require_same_name(info: Any, model_id: str, where: str) -> None:
    """The client follows the hub from an old name to a new one; an abandoned name can be taken by somebody else."""
    if info.id != model_id:
        raise RepositoryRenamed(
            f"the hub answers for {info.id}",
            where=where,
            hint=f"if that is the model you mean, set model.id to {info.id}",
        )


def _require_requested_commit(model: PinnedModel, revision: str, where: str) -> None:
    if re.fullmatch(r"[0-9a-f]{40}", revision) and model.commit != revision:
        raise IntegrityError(f"the hub answers with commit {model.commit}, which is not the one requested", where=where)


def report_resolved(model: PinnedModel, selection: Selection) -> None:
    """Log what was pinned, and what of the source is left where it is."""
    log.info(
        "resolved",
        model=model.id,
        commit=model.commit,
        files=len(model.files),
        bytes=model.size,
        skipped=len(selection.skipped),
        refused=", ".join(sorted(selection.refused)[:8]) or "none",
        license=model.license or "none stated",
    )
