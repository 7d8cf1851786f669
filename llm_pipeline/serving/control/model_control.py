"""Model control of a running Triton: which versions it has, and loading and unloading models, over HTTP or gRPC.

Source: the model repository extension of the inference protocol (triton-inference-server/server,
`docs/protocol/extension_model_repository.md`). The server must run with `--model-control-mode=explicit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from llm_pipeline.base.errors import Terminal

ModelConfigDocument = Mapping[str, Any]
"""A model's configuration as JSON, with the names of `model_config.proto`."""

_READY = "READY"


class ModelRefused(Terminal):
    """The server refused to load or unload a model, and said why."""


@dataclass(frozen=True)
class ModelVersion:
    """A version of a model, as the server's repository index has it.

    Attributes:
        number: The version; 0 for a model that has none.
        state: `READY`, `LOADING`, `UNLOADING`, `UNAVAILABLE`, or empty for one that was never loaded.
        reason: Why it is unavailable.
    """

    number: int
    state: str
    reason: str

    @property
    def ready(self) -> bool:
        """Whether the server says that it takes requests; a dead stub does not change that."""
        return self.state == _READY


class ModelControl(Protocol):
    """One server's model control.

    Every call raises Transient when the server does not answer, and ConfigError when it does not let us in.
    """

    def versions(self, model: str) -> tuple[ModelVersion, ...]:
        """The versions of a model that the server knows of, loaded or not."""
        ...

    def config(self, model: str) -> ModelConfigDocument | None:
        """The configuration that a model was loaded with, of its highest version; None when it is not loaded."""
        ...

    def is_ready(self, model: str, version: int) -> bool:
        """Whether a version takes requests. The server's own readiness says nothing of a model."""
        ...

    def load(self, model: str, config: ModelConfigDocument | None = None) -> None:
        """Load a model, or change what is loaded of it, and wait until that is done.

        Versions that stay go on serving. Loading what has not changed does nothing.

        Args:
            model: Its name.
            config: Used instead of the model's `config.pbtxt`, until the next load.

        Raises:
            ModelRefused: It cannot be loaded; what was loaded before still serves.
        """
        ...

    def unload(self, model: str) -> None:
        """Unload all versions of a model. The server answers before they are gone; one that is not there is fine."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...
