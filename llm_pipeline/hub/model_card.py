"""What a model's card states about its licence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.yaml_document import YamlBounds, parse_yaml

CARD_FILE = "README.md"
MAXIMUM_CARD_BYTES = 4_000_000
_BOUNDS = YamlBounds(bytes=MAXIMUM_CARD_BYTES, depth=64, nodes=200_000, strict=False)
"""Cards of embedding models list every result of a benchmark: tens of thousands of values."""

_FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)\r?\n---", re.DOTALL)


def card_fields(text: str) -> dict[str, Any]:
    """The YAML front matter of a card; empty when there is none or it cannot be read."""
    match = _FRONT_MATTER.match(text)
    try:
        fields = parse_yaml(match.group(1), where=CARD_FILE, bounds=_BOUNDS).value if match else None
    except ConfigError:
        return {}
    return fields if isinstance(fields, dict) else {}


def stated_license(card: Mapping[str, Any], tags: Iterable[str] = ()) -> str | None:
    """The licence as the hub writes it: the card's, its own name when the card says `other`, or the tag's.

    Args:
        card: The card's front matter.
        tags: Tags of the repository, among them perhaps `license:<name>`.
    """
    if card.get("license") == "other" and card.get("license_name"):
        return str(card["license_name"])
    if card.get("license"):
        return str(card["license"])
    return next((tag.removeprefix("license:") for tag in tags if tag.startswith("license:")), None)
