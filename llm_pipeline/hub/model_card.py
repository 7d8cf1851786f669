"""What a model's card states, and whether its licence lets it be released."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llm_pipeline.artifacts.pinned import PinnedModel
from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.base.yaml_document import YamlBounds, parse_yaml

CARD_FILE = "README.md"
MAXIMUM_CARD_BYTES = 4_000_000
_BOUNDS = YamlBounds(bytes=MAXIMUM_CARD_BYTES, depth=64, nodes=200_000, strict=False)
"""Cards of embedding models list every result of a benchmark: tens of thousands of values."""

_NO_LICENSE = "not stated"
_NOT_GATED = "no"
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
    """The licence as the hub writes it: the card's, its own name when the card says `other`, or the tag's."""
    if card.get("license") == "other" and card.get("license_name"):
        return str(card["license_name"])
    if card.get("license"):
        return str(card["license"])
    return next((tag.removeprefix("license:") for tag in tags if tag.startswith("license:")), None)


def require_license(model: PinnedModel, allowed: Sequence[str] | None) -> None:
    """Refuse a model whose licence is not on the list, if there is one.

    Raises:
        Unsupported: It has another one, or states none.
    """
    if allowed is None or (model.license or "").casefold() in {name.casefold() for name in allowed}:
        return
    raise Unsupported(
        f"the model's licence is {model.license or _NO_LICENSE}; model.licenses allows {', '.join(allowed) or 'none'}",
        where=model.name,
        hint="have the licence reviewed and add it to model.licenses, or release another model",
    )


def license_change(before: PinnedModel | None, now: PinnedModel) -> str:
    """What changed in licence and gating, for people: e.g. `apache-2.0 -> llama3.1; gated: no -> manual`.

    Args:
        before: The model of the release before; None for a first release, which changes nothing.
        now: The model of this release.
    """
    if before is None:
        return ""
    changes = []
    if before.license != now.license:
        changes.append(f"{before.license or _NO_LICENSE} -> {now.license or _NO_LICENSE}")
    if before.gated != now.gated:
        changes.append(f"gated: {before.gated or _NOT_GATED} -> {now.gated or _NOT_GATED}")
    return "; ".join(changes)
