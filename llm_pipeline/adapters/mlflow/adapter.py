"""The settings of the channel `mlflow`, and what opens it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar, Literal

from llm_pipeline.base.adapters import Adapter, OnCall
from llm_pipeline.config.model import Word
from llm_pipeline.config.notifications import ChannelModel

if TYPE_CHECKING:
    from llm_pipeline.notifications.channel import ConnectionReader, Recorder

_RECORDER = OnCall("llm_pipeline.adapters.mlflow.recorder:RunRecorder")


class MlflowChannel(ChannelModel):
    """A run of MLflow for each release, on the server that MLflow's own variables (`MLFLOW_*`) name.

    Without `MLFLOW_TRACKING_URI` in the environment of whoever runs a release, nothing is kept.

    Attributes:
        experiment: Name of the experiment that the runs belong to; it is made if there is none.
    """

    keeps_record: ClassVar[bool] = True

    kind: Literal["mlflow"]
    experiment: Word = "llm-pipeline"


def _open(settings: MlflowChannel, _connections: ConnectionReader) -> Recorder | None:
    """The recorder; None, and nothing imported, where the environment names no server."""
    address = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    recorder: Recorder | None = _RECORDER(address, settings.experiment) if address else None
    return recorder


ADAPTER = Adapter(config=MlflowChannel, open=_open)
