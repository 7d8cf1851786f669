"""Named calibration sets: public data sets that a recipe can name instead of a file (`set:cnn_dailymail`)."""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import PurePosixPath

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.catalog.tables import read_table
from llm_pipeline.config.model import ConfigModel, HubId
from llm_pipeline.config.quantization import NAMED_SET

_CHAT_FIELD = "messages"


class NamedSet(ConfigModel):
    """One file of a data set on the hub.

    Attributes:
        dataset: The data set's id.
        revision: The commit that is read.
        file: The file's path in the repository: jsonl or parquet.
        field: The column of the texts; `messages` for chats.
        description: What it is, in a sentence.
    """

    dataset: HubId
    revision: str
    file: str
    field: str
    description: str

    @property
    def file_name(self) -> str:
        """Name of the file, without its directories."""
        return PurePosixPath(self.file).name


@cache
def named_sets() -> dict[str, NamedSet]:
    """All sets by name."""
    return {name: NamedSet.model_validate(content) for name, content in read_table("calibration_sets").items()}


def named_set(name: str, *, chat: bool) -> NamedSet:
    """A set by its name, with or without `set:`.

    Args:
        name: As a recipe writes it.
        chat: Whether the recipe renders chats.

    Raises:
        ConfigError: There is no such set, or it holds texts where chats are wanted, or the other way.
    """
    known = named_sets()
    found = known.get(name.removeprefix(NAMED_SET))
    if found is None:
        close = difflib.get_close_matches(name.removeprefix(NAMED_SET), known, n=1)
        hint = f"did you mean {NAMED_SET}{close[0]}?" if close else f"there are {', '.join(sorted(known))}"
        raise ConfigError(f"there is no calibration set {name}", hint=hint)
    if chat != (found.field == _CHAT_FIELD):
        holds = "texts, not chats" if chat else "chats"
        advice = f"set calibration.chat_template: {'false' if chat else 'true'}"
        raise ConfigError(f"the calibration set {name} holds {holds}", hint=advice)
    return found
