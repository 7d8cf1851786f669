"""Where a staging server runs: on this host, in a container of it, or on a cluster.

The kind decides, `openai` being a server that runs already; ports without a kind are a server of this host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, SerializeAsAny

from llm_pipeline.config.installed import OfKind
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.server_ports import ServerPorts
from llm_pipeline.config.target import Target


class ServerModel(ConfigModel):
    """What every kind of staging server is; each names its `kind`.

    One on ports of this host derives from `ServerPorts` besides; any other has a field `endpoint`, or its adapter says
    where it answers.

    Attributes:
        is_process_here: It is started on this host, with the deployment's `triton_home` and the interpreter of the
            place; where `start_server` does that, the load test measures the server's memory.
        fetches_release: It fetches the artifacts of a release from the store itself, so it is told their names
            (`Candidate.release`) and given no copies.
    """

    is_process_here: ClassVar[bool] = False
    fetches_release: ClassVar[bool] = False

    if TYPE_CHECKING:
        kind: str

    def problems(self, target: Target) -> Iterator[str]:  # noqa: ARG002 - most servers take every target
        """Why it cannot serve a target, as far as its settings tell; `plan` refuses a release of it."""
        yield from ()

    def warnings(self, target: Target) -> Iterator[str]:  # noqa: ARG002
        """What `plan` says of it besides."""
        yield from ()


def _local_by_default(value: Any) -> Any:
    given = dict(value) if type(value) is ServerPorts else value
    return {"kind": "local", **given} if isinstance(given, dict) else given


ServerPlace = Annotated[ServerModel, OfKind("server_controls"), BeforeValidator(_local_by_default), SerializeAsAny()]
"""Settings of an adapter: ours, or one of an installed package; ports alone are a server of this host."""
