"""An S3 prefix as a source: pinned by entity tags, so that an object that changes is never read in part."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from llm_pipeline.artifacts.model_files import select_files
from llm_pipeline.artifacts.pinned import HubFile, PinnedModel
from llm_pipeline.base.errors import IntegrityError, PipelineError, Transient
from llm_pipeline.config.store import S3Place
from llm_pipeline.hub.directory_source import require_revision
from llm_pipeline.hub.git_ids import content_commit
from llm_pipeline.hub.model_card import CARD_FILE, MAXIMUM_CARD_BYTES, card_fields, stated_license
from llm_pipeline.hub.source import ModelLook, SourceRefused, SourceUnavailable, report_resolved

if TYPE_CHECKING:
    from llm_pipeline.store.blobs import Listed
    from llm_pipeline.store.s3_blobs import S3Blobs

_ASKED_AT_ONCE = 8


@dataclass(frozen=True)
class S3Source:
    """An S3 prefix that a model is read from.

    Attributes:
        access: Bucket and prefix as `uri`, and how it is reached.
    """

    access: S3Place

    def resolve(self, model_id: str, revision: str) -> PinnedModel:
        """Pins the objects by what S3 states of them: the SHA-256 of the whole, or else the entity tag."""
        objects = self._objects()
        selection = select_files(list(objects), where=self.access.uri)
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            files = tuple(pool.map(self._pin, selection.fetched))
        card = objects.get(CARD_FILE)
        text = self._bytes(card, 0, MAXIMUM_CARD_BYTES).decode(errors="replace") if card else ""
        model = PinnedModel(
            id=model_id,
            commit=content_commit({file.path: file.content for file in files}),
            files=files,
            license=stated_license(card_fields(text)),
        )
        require_revision(model.commit, revision, self.access.uri)
        report_resolved(model, selection)
        return model

    def look(self, model_id: str, revision: str) -> ModelLook:
        """Looks at the prefix as it is; it has no revisions."""
        del model_id, revision
        objects = self._objects()
        sizes = {path: item.size for path, item in objects.items()}
        fetched = select_files(sizes, where=self.access.uri).fetched
        return ModelLook(
            self.access.uri,
            {path: sizes[path] for path in fetched},
            lambda path, start, length: self._bytes(objects[path], start, length),
        )

    def fetch(self, model: PinnedModel, file: HubFile, directory: Path) -> None:
        from llm_pipeline.store.s3_blobs import Wanted

        del model
        with _source_errors():
            self._bucket.download({directory / file.path: Wanted(file.path, file.entity_tag)})

    @cached_property
    def _bucket(self) -> S3Blobs:
        from llm_pipeline.store.s3_blobs import S3Blobs

        return S3Blobs(self.access)

    def _objects(self) -> dict[str, Listed]:
        """The objects by their paths below the prefix."""
        with _source_errors():
            return {item.name: item for item in self._bucket.list("") if not item.name.endswith("/")}

    def _bytes(self, item: Listed, start: int, length: int) -> bytes:
        """Some bytes of an object as it was listed; fewer at its end."""
        with _source_errors():
            return self._bucket.read_range(item, start, start + length)

    def _pin(self, path: str) -> HubFile:
        with _source_errors():
            head = self._bucket.head(path)
        if head is None:
            raise _gone(self._bucket.address(path))
        return HubFile(path=path, size=head.item.size, sha256=head.sha256, entity_tag=head.item.revision)


@contextmanager
def _source_errors() -> Iterator[None]:
    """Raise the errors of a store's requests as a source's."""
    from llm_pipeline.store.blobs import Changed
    from llm_pipeline.store.s3_blobs import Absent

    try:
        yield
    except Changed as error:
        problem = "the object changed after the release was resolved"
        raise IntegrityError(problem, where=error.where, hint="resolve the release again") from error
    except Absent as error:
        raise _gone(error.where) from error
    except PipelineError as error:
        kind = SourceUnavailable if isinstance(error, Transient) else SourceRefused
        raise kind(error.message, where=error.where, hint=error.hint) from error


def _gone(where: str) -> SourceRefused:
    return SourceRefused("there is no such object", where=where, hint="resolve the release again")
