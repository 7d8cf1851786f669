"""What a release may be made from: the licence, and what changed in it and in the gating since the release before."""

from __future__ import annotations

from collections.abc import Sequence

from llm_pipeline.artifacts.pinned import PinnedModel
from llm_pipeline.base.errors import Unsupported

_NO_LICENSE = "not stated"
_NOT_GATED = "no"


def require_license(model: PinnedModel, allowed: Sequence[str] | None) -> None:
    """Refuse a model whose licence is not on the list.

    Args:
        model: The pinned model.
        allowed: Licences as the hub writes them; None for any.

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
