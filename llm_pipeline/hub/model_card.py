"""What the cards of models and data sets state, and whether a licence lets a model be released."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llm_pipeline.artifacts.pinned import PinnedModel
from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.base.yaml_document import YamlBounds, parse_yaml

CARD_FILE = "README.md"
MAXIMUM_CARD_BYTES = 4_000_000
_BOUNDS = YamlBounds(bytes=MAXIMUM_CARD_BYTES, depth=64, strict=False)
"""Cards of embedding models list every result of a benchmark: tens of thousands of values."""

_NO_LICENSE = "not stated"
_BETWEEN = ", "
_NOT_GATED = "no"
_FRONT_MATTER = re.compile(r"\A\ufeff?\s*---[ \t]*\r?\n(.*?)\r?\n---", re.DOTALL)


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

    Of a card with several they are all named, with commas.
    """
    if card.get("license") == "other" and card.get("license_name"):
        return _named(card["license_name"])
    if card.get("license"):
        return _named(card["license"])
    return next((tag.removeprefix("license:") for tag in tags if tag.startswith("license:")), None)


def _named(value: Any) -> str:
    return _BETWEEN.join(map(str, value)) if isinstance(value, list) else str(value)


_KNOWN_LICENSES = frozenset({
    "apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "gpl-2.0", "gpl-3.0", "agpl-3.0", "lgpl-3.0", "mpl-2.0", "isc",
    "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0", "unlicense", "openrail", "llama2",
    "llama3", "llama3.1", "llama3.2", "llama3.3", "gemma",
})  # fmt: skip
"""Common ones of https://huggingface.co/docs/hub/repositories-licenses; what is not among them is `other`."""


def inherited_fields(card: Mapping[str, Any], model: PinnedModel, page: str) -> dict[str, Any]:
    """What the card of a model that was made from another one takes over from that one's: licence, language, task.

    Args:
        card: Fields of the base's card; empty where it cannot be read.
        model: The base, whose licence is known in any case.
        page: Address of the base's page, for a licence that is a file of it.
    """
    fields: dict[str, Any] = {}
    stated, named = model.license, card.get("license")
    if isinstance(named, str) and named != "other":
        fields["license"] = named
    elif stated is not None and stated in _KNOWN_LICENSES:
        fields["license"] = stated
    elif stated is not None:
        link = card.get("license_link")
        absolute = isinstance(link, str) and link.startswith("https://")
        fields |= {
            "license": "other",
            "license_name": stated if stated != "other" else f"{model.id.rpartition('/')[2]}-license".lower(),
            "license_link": link if absolute else f"{page}/blob/{model.commit}/{link}" if link else page,
        }
    language, task = card.get("language"), card.get("pipeline_tag")
    if isinstance(language, (str, list)):
        fields["language"] = language
    if isinstance(task, str):
        fields["pipeline_tag"] = task
    return fields


def require_license(model: PinnedModel, allowed: Sequence[str] | None) -> None:
    """Refuse a model whose licence is not on the list, if there is one; of several, each must be.

    Raises:
        Unsupported: It has another one, or states none.
    """
    names = {name.casefold() for name in allowed or ()}
    stated = (model.license or "").casefold()
    if allowed is None or stated in names or names.issuperset(stated.split(_BETWEEN)):
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
