"""What takes the place of a document that cannot be read, so that the others are shown all the same."""

from __future__ import annotations

from llm_pipeline.base.records import Frozen
from llm_pipeline.store.documents import DamagedDocument


class DamagedRow(Frozen):
    """A document that cannot be read or understood."""

    document: str
    problem: str

    @classmethod
    def of(cls, damaged: DamagedDocument) -> DamagedRow:
        """The row of a damaged document."""
        return cls(document=damaged.name, problem=str(damaged.error))

    def __str__(self) -> str:
        return f"DAMAGED  {self.document}: {self.problem}"
