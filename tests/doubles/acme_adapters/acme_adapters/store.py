"""A store on a shelf: directories of this host under a name of its own."""

from __future__ import annotations

from collections.abc import Iterator

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.adapters import Adapter
from llm_pipeline.config.model import AbsolutePath
from llm_pipeline.config.store import StoreModel, store_settings


class AcmeShelf(StoreModel):
    shelf: AbsolutePath
    full: bool = False

    def problems(self) -> Iterator[str]:
        if not self.shelf.startswith("/"):
            yield "the shelf has no place"

    def warnings(self) -> Iterator[str]:
        if self.full:
            yield f"{self.uri} is nearly full"


class ShelfStore(LocalStore):
    def __init__(self, settings: AcmeShelf) -> None:
        super().__init__(store_settings(uri=f"file://{settings.shelf}", signing=settings.signing))
        self.uri = settings.uri


STORE = Adapter(config=AcmeShelf, open=ShelfStore, probe=lambda settings: f"shelf {settings.shelf} is there")
