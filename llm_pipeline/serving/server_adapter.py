"""What an entry point in `llm_pipeline.server_controls` may name. It imports nothing heavy, like `RouterAdapter`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llm_pipeline.base.adapters import Adapter

if TYPE_CHECKING:
    from llm_pipeline.config.endpoint import Endpoint


@dataclass(frozen=True)
class ServerAdapter(Adapter):
    """An adapter of servers whose address follows from names, so that their settings need no `endpoint`.

    Attributes:
        endpoint: Where its server answers, from `(place, release_name, target_name)`; it asks nobody.
    """

    endpoint: Callable[[Any, str, str], Endpoint]
