"""Environments: where the process of a stage starts. An interpreter of this host, a container, or a pod.

A stage names its environment (`control`, `model`, or the one that a target names); the deployment says what that is.
A plain string is short for an interpreter of this host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny

from llm_pipeline.config.installed import AdapterModel, OfKind
from llm_pipeline.config.model import ConfigModel, Name, PathText, VariableName, Word

VariableNames = Annotated[tuple[VariableName, ...], Field(max_length=256)]


class EnvironmentModel(AdapterModel):
    """What every kind of environment is; each names its `runner`."""

    if TYPE_CHECKING:
        runner: str

    def interpreter_here(self) -> str | None:
        """Its interpreter, where that is one of this host: commands and servers' code run in it; None elsewhere."""
        return None

    def is_deferrable(self) -> bool:
        """Whether an Airflow task may wait for a stage there in the triggerer, and hold no worker meanwhile."""
        return False

    def is_seen_on_its_host_only(self) -> bool:
        """Whether no other host can tell if a stage there still runs."""
        return True


class Toleration(ConfigModel):
    """A taint that the pod may be scheduled on all the same, in Kubernetes' words.

    Attributes:
        value: Of the taint; None for any.
        effect: Of the taint; None for every one.
    """

    key: Word
    value: Word | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None

    def of_pod(self) -> dict[str, str]:
        """As a pod's specification has it."""
        return {**self.model_dump(exclude_none=True), "operator": "Exists" if self.value is None else "Equal"}


class ClaimMount(ConfigModel):
    """A persistent volume claim inside the pod.

    Attributes:
        claim: Its name.
        path: Where the pod sees it.
        writable: Whether the stage may write there.
    """

    claim: Name
    path: PathText
    writable: bool = False


Tolerations = Annotated[tuple[Toleration, ...], Field(max_length=64)]
Claims = Annotated[tuple[ClaimMount, ...], Field(max_length=256)]


def _from_path(value: Any) -> Any:
    return {"runner": "process", "python": value} if isinstance(value, str) else value


Environment = Annotated[
    EnvironmentModel, OfKind("runners", key="runner"), BeforeValidator(_from_path), SerializeAsAny()
]
"""Settings of an adapter: ours, or one of an installed package; a path alone is an interpreter of this host."""
