"""Which Transformers the CPU engine's exporter may trace an architecture with. Light: planning reads it, too.

The exporter names the newest Transformers that its authors tried an architecture with, and refuses any other. Some of
those are traced right by a newer one all the same: the tests of the corpus compare what such engines answer with what
Transformers itself does, token by token, over windows and up to the end of the context.
"""

from __future__ import annotations

from collections.abc import Mapping

TRACED_WITH: Mapping[str, str] = {"gemma": "5.5.4", "gemma2": "5.5.4", "gemma3_text": "5.5.4"}
"""By architecture: the newest Transformers that it was compared with here."""


def newest_transformers(model_type: str, stated: str | None) -> str | None:
    """The newest Transformers for an architecture; None for any.

    Args:
        model_type: The architecture.
        stated: What the exporter says.
    """
    return None if stated is None else TRACED_WITH.get(model_type, stated)
