"""Records that cross processes: immutable, and refused when they hold a field that is not theirs."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

Metric = float | int | str | None


class Frozen(BaseModel):
    """Base of the immutable records that cross processes."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        defer_build=True,  # a command uses few of the records: a plan starts with a fifth less to do
    )


class ArtifactRef(Frozen):
    """An artifact's name: its kind and the digest of its content."""

    kind: str
    digest: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.digest[:12]}"
