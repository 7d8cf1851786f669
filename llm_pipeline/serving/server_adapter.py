"""What an entry point `llm_pipeline.server_controls` may name; importing it costs nothing, as for `RouterAdapter`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llm_pipeline.base.adapters import Adapter

if TYPE_CHECKING:
    from llm_pipeline.config.endpoint import Endpoint


@dataclass(frozen=True)
class ServerAdapter(Adapter):
    """An adapter of servers whose settings need no `endpoint`, since it follows from names.

    Attributes:
        endpoint: Where its server answers, of `(place, release_name, target_name)`; it asks nobody.
    """

    endpoint: Callable[[Any, str, str], Endpoint]
