"""The hub as a source: pins through its API, and has its client bring the files."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import hf_raise_for_status, http_stream_backoff
from pydantic import ValidationError

from llm_pipeline.artifacts.model_files import Selection, select_files, unsafe_reason
from llm_pipeline.artifacts.pinned import HubFile, PinnedDataSet, PinnedModel
from llm_pipeline.base.logging import get_logger
from llm_pipeline.hub.access import (
    TIMEOUT_SECONDS,
    Hub,
    HubRefused,
    HubUnavailable,
    RepositoryKind,
    listed_file,
    malformed_answer,
)
from llm_pipeline.hub.model_card import CARD_FILE, stated_license
from llm_pipeline.hub.source import ModelLook, report_resolved

log = get_logger(__name__)

_PARTIAL_CONTENT = 206
_WAITS_SECONDS = (1, 2, 4)
_LONGEST_WAIT_SECONDS = 10.0

Answer = TypeVar("Answer")
Pinned = TypeVar("Pinned", bound=PinnedModel)


@dataclass(frozen=True)
class HubSource:
    """A hub that models, or data sets, are read from; it is a connection from `connect`."""

    hub: Hub
    repositories: RepositoryKind = "model"

    def resolve(self, model_id: str, revision: str) -> PinnedModel:
        model, selection = _patiently(lambda: _pin(self.hub, model_id, revision))
        report_resolved(model, selection)
        return model

    def look(self, model_id: str, revision: str) -> ModelLook:
        model, _ = _patiently(lambda: _pin(self.hub, model_id, revision))
        sizes = {file.path: file.size for file in model.files}
        return ModelLook(model.name, sizes, lambda path, start, length: self._read(model, path, start, length))

    def pin(self, name: str, revision: str) -> PinnedDataSet:
        """Pins a data set to a commit; one that the hub has renamed is taken from its new name."""
        where = f"datasets/{name}@{revision}"
        info = _information(self.hub, name, revision, where, "dataset")
        if info.id != name:
            log.warning("the hub has this data set under another name", data_set=name, now=info.id)
        names = (sibling.rfilename for sibling in info.siblings or [])
        paths = sorted(path for path in names if unsafe_reason(path) is None)
        pinned = _pinned(PinnedDataSet, info, paths, where, id=info.id)
        data = [file for file in pinned.files if not file.path.startswith(".") and file.path != CARD_FILE]
        if pinned.gated and data:
            self.hub.require_access(pinned, min(data, key=lambda file: file.size), where, "dataset")
        return pinned

    def fetch(self, model: PinnedModel, file: HubFile, directory: Path) -> None:
        _patiently(lambda: self._download(model, file, directory))

    def _download(self, model: PinnedModel, file: HubFile, directory: Path) -> None:
        with self.hub.errors_at(f"{self._page_of(model)}: {file.path}"):
            self.hub.api.hf_hub_download(
                model.id,
                file.path,
                repo_type=self.repositories,
                revision=model.commit,
                local_dir=directory,
                cache_dir=directory / ".cache",
                etag_timeout=TIMEOUT_SECONDS,
            )

    def _read(self, model: PinnedModel, path: str, start: int, length: int) -> bytes:
        """Some bytes of a file; a server may ignore the range and send everything."""
        if not length:
            return b""
        url = hf_hub_url(model.id, path, repo_type=self.repositories, revision=model.commit, endpoint=self.hub.endpoint)
        headers = self.hub.headers() | {"Range": f"bytes={start}-{start + length - 1}"}
        with (
            self.hub.errors_at(f"{self._page_of(model)}: {path}"),
            http_stream_backoff("GET", url, headers=headers, timeout=TIMEOUT_SECONDS) as answer,
        ):
            hf_raise_for_status(answer)
            before = 0 if answer.status_code == _PARTIAL_CONTENT else start
            found = bytearray()
            for chunk in answer.iter_bytes():
                found += chunk
                if len(found) >= before + length:
                    break
            return bytes(found[before : before + length])

    def _page_of(self, model: PinnedModel) -> str:
        """Its name as in the address of its page, where the terms of a gated repository are accepted."""
        return model.name if self.repositories == "model" else f"datasets/{model.name}"


def _patiently(ask: Callable[[], Answer]) -> Answer:
    """Ask again a hub that answers that it cannot now, after the time that it names."""
    for wait in _WAITS_SECONDS:
        try:
            return ask()
        except HubUnavailable as error:
            seconds = wait if error.retry_after_seconds is None else error.retry_after_seconds
            if not isinstance(error.__cause__, HfHubHTTPError) or seconds > _LONGEST_WAIT_SECONDS:
                raise
            log.warning("the hub is asked again", reason=error.message, wait_seconds=seconds)
            time.sleep(seconds)
    return ask()


def _pin(hub: Hub, model_id: str, revision: str) -> tuple[PinnedModel, Selection]:
    """The pinned model, of which `hub` gives every file, and what of its repository is left out."""
    where = f"{model_id}@{revision}"
    info = _information(hub, model_id, revision, where)
    if info.id != model_id:  # the client follows renames; an abandoned name can be taken by somebody else
        hint = f"if that is the model you mean, set model.id to {info.id}"
        raise HubRefused(f"the hub answers for {info.id}", where=where, hint=hint)
    selection = select_files([sibling.rfilename for sibling in info.siblings or []], where=where)
    stated = stated_license(info.card_data.to_dict() if info.card_data else {}, info.tags or ())
    model = _pinned(PinnedModel, info, selection.fetched, where, id=model_id, license=stated)
    smallest = min(model.files, key=lambda file: file.size)  # select_files refuses a repository without any
    hub.require_access(model, smallest, where)
    return model, selection


def _information(hub: Hub, name: str, revision: str, where: str, kind: RepositoryKind = "model") -> Any:
    info = hub.information(name, revision, where, kind=kind, files_metadata=True)
    if info.disabled:
        raise HubRefused("the repository was disabled", where=where, hint="choose another one")
    return info


def _pinned(kind: type[Pinned], info: Any, paths: Sequence[str], where: str, **stated: str | None) -> Pinned:
    """Some of the files that the hub lists, at the commit of its answer."""
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or []}
    files = (listed_file(siblings[path]) for path in paths)
    try:
        return kind(commit=info.sha, files=tuple(files), gated=info.gated or None, **stated)
    except ValidationError as error:
        raise malformed_answer(where, str(error)) from error
