"""What a data set's card says of its configurations and their splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_pipeline.artifacts.pinned import PinnedDataSet
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.hub.model_card import CARD_FILE, MAXIMUM_CARD_BYTES, card_fields
from llm_pipeline.hub.source import FileBytes, taken

_DEFAULT = "default"


@dataclass(frozen=True)
class DataSetCard:
    """A card, as far as it says anything.

    Attributes:
        configurations: Names of the splits by configuration, None where the card leaves them to the files' names; empty
            where the card names no configurations.
        default: The configuration that is read where none is named; None where there is no such.
    """

    configurations: Mapping[str, tuple[str, ...] | None]
    default: str | None = None

    def refuse(self, config: str | None, splits: tuple[str, ...], where: str) -> None:
        """Refuse what the card shows not to be there.

        Raises:
            ConfigError: No such configuration, none was named and there are several, or no such split.
        """
        if not self.configurations:
            return
        names = ", ".join(self.configurations)
        wanted = config or self.default
        if wanted is None:
            raise ConfigError(f"its task names no configuration, and there are several: {names}", where=where)
        if wanted not in self.configurations:
            raise ConfigError(f"the data set has no configuration {wanted!r}, only {names}", where=where)
        known = self.configurations[wanted]
        if known is not None and (missing := [split for split in splits if split not in known]):
            raise ConfigError(f"{wanted} has no split {', '.join(missing)}, only {', '.join(known)}", where=where)


def read_card(source: FileBytes, pinned: PinnedDataSet) -> DataSetCard:
    """The card of a pinned data set.

    Raises:
        SourceRefused: The source does not give it.
        SourceUnavailable: The source cannot be asked now.
    """
    file = next((file for file in pinned.files if file.path == CARD_FILE), None)
    if file is None or file.size > MAXIMUM_CARD_BYTES:
        return DataSetCard({})
    with source.open(pinned, file, 0) as body:
        text = taken(body, 0, file.size).decode("utf-8", errors="replace")
    stated = card_fields(text).get("configs")
    configs = [one for one in stated if isinstance(one, dict)] if isinstance(stated, list) else []
    found = {str(one["config_name"]): _splits(one.get("data_files")) for one in configs if one.get("config_name")}
    marked = [str(one["config_name"]) for one in configs if one.get("config_name") and one.get("default") is True]
    only = list(found) if len(found) == 1 or _DEFAULT not in found else [_DEFAULT]
    default = marked[0] if marked else only[0] if len(only) == 1 else None
    return DataSetCard(found, default)


def _splits(data_files: Any) -> tuple[str, ...] | None:
    if isinstance(data_files, Mapping):
        return tuple(map(str, data_files))
    if isinstance(data_files, list) and data_files and all(isinstance(one, dict) for one in data_files):
        return tuple(str(one.get("split", "train")) for one in data_files)
    return None
