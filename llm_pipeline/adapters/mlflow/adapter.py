"""The settings of the channel `mlflow`, and what opens it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from llm_pipeline.base.adapters import Adapter, OnCall
from llm_pipeline.base.errors import Unsupported
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
    if not address:
        return None
    try:
        recorder: Recorder = _RECORDER(address, settings.experiment)
    except ImportError as error:
        raise Unsupported(
            "MLflow is not installed in this interpreter", hint="pip install 'llm-pipeline[mlflow]'"
        ) from error
    return recorder


def _probe(settings: MlflowChannel) -> str:
    """What `doctor` says.

    Raises:
        Unsupported: MLflow is not installed here.
        NotSent: The server does not answer.
    """
    recorder: Any = _open(settings, lambda _: None)
    if recorder is None:
        return "nothing is kept from here: the environment has no MLFLOW_TRACKING_URI"
    recorder.look()
    return f"the server answers, experiment {settings.experiment}"


ADAPTER = Adapter(config=MlflowChannel, open=_open, probe=_probe)
