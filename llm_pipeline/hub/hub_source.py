"""The hub as a source: pins through its API, reads files over HTTP with the client's session and headers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from huggingface_hub import hf_hub_url
from huggingface_hub.constants import MAX_HTTP_DOWNLOAD_SIZE
from huggingface_hub.utils import get_session, hf_raise_for_status
from pydantic import ValidationError

from llm_pipeline.artifacts.model_files import Selection, select_files
from llm_pipeline.artifacts.pinned import HubFile, PinnedModel
from llm_pipeline.hub.access import (
    TIMEOUT_SECONDS,
    Hub,
    RepositoryDisabled,
    RepositoryRenamed,
    listed_file,
    malformed_answer,
)
from llm_pipeline.hub.model_card import stated_license
from llm_pipeline.hub.source import Body, ModelLook, report_resolved, taken

_PARTIAL_CONTENT = 206
_RANGE_NOT_SATISFIABLE = 416


@dataclass(frozen=True)
class HubSource:
    """A hub that models are read from."""

    hub: Hub
    repositories: Literal["model", "dataset"] = "model"

    _timeout_seconds: ClassVar[float] = TIMEOUT_SECONDS
    _longest_answer: ClassVar[int] = MAX_HTTP_DOWNLOAD_SIZE
    """The hub's content delivery network sends no more in one answer; ranges of larger files are fine."""

    def resolve(self, model_id: str, revision: str) -> PinnedModel:
        model, selection = _pin(self.hub, model_id, revision)
        report_resolved(model, selection)
        return model

    def look(self, model_id: str, revision: str) -> ModelLook:
        model, _ = _pin(self.hub, model_id, revision)
        files = {file.path: file for file in model.files}

        def read(path: str, start: int, length: int) -> bytes:
            with self._open(model, files[path], start, length) as body:
                return taken(body, start, length)

        return ModelLook(model.name, {file.path: file.size for file in model.files}, read)

    def open(self, model: PinnedModel, file: HubFile, start: int) -> AbstractContextManager[Body]:
        return self._open(model, file, start, file.size - start)

    @contextmanager
    def _open(self, model: PinnedModel, file: HubFile, start: int, length: int) -> Iterator[Body]:
        url = hf_hub_url(
            model.id, file.path, repo_type=self.repositories, revision=model.commit, endpoint=self.hub.endpoint
        )
        headers = self.hub.headers()
        length = min(length, self._longest_answer)
        to_the_end = start + length >= file.size
        if start or not to_the_end:
            headers["Range"] = f"bytes={start}-{'' if to_the_end else start + length - 1}"
        with (
            self.hub.errors_at(f"{self._page_of(model)}: {file.path}"),
            get_session().stream("GET", url, headers=headers, timeout=self._timeout_seconds) as response,
        ):
            if response.status_code == _RANGE_NOT_SATISFIABLE:
                yield Body(start=0, chunks=iter(()))
                return
            hf_raise_for_status(response)
            yield Body(start=_first_byte(response, start), chunks=response.iter_raw())

    def _page_of(self, model: PinnedModel) -> str:
        """Its name as in the address of its page, where the terms of a gated repository are accepted."""
        return model.name if self.repositories == "model" else f"datasets/{model.name}"


def _first_byte(response: Any, asked: int) -> int:
    """The file's byte that the answer starts with; a server may ignore ranges and send everything."""
    content_range = str(response.headers.get("Content-Range", ""))
    granted = response.status_code == _PARTIAL_CONTENT and content_range.startswith(f"bytes {asked}-")
    return asked if granted else 0


def _pin(hub: Hub, model_id: str, revision: str) -> tuple[PinnedModel, Selection]:
    """The pinned model, of which `hub` gives every file, and what of its repository is left out."""
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
