"""The settings of the channel `opentelemetry`, and what opens it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar, Literal

from llm_pipeline.base.adapters import Adapter, OnCall
from llm_pipeline.base.errors import Unsupported
from llm_pipeline.config.notifications import ChannelModel

if TYPE_CHECKING:
    from llm_pipeline.notifications.channel import ConnectionReader, Recorder

_SIGNALS = ("TRACES", "METRICS")
_RECORDER = OnCall("llm_pipeline.adapters.opentelemetry.recorder:TelemetryRecorder")


class OpenTelemetryChannel(ChannelModel):
    """Traces and metrics of releases, sent where OpenTelemetry's own variables (`OTEL_*`) say.

    Without `OTEL_EXPORTER_OTLP_ENDPOINT` or its like in the environment of whoever runs a release, nothing is sent.
    """

    keeps_record: ClassVar[bool] = True

    kind: Literal["opentelemetry"]


def exporters(signal: str) -> tuple[str, ...]:
    """Names of the exporters that the environment asks for, for `TRACES` or `METRICS`; none by default."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ()
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    default = "otlp" if any(os.environ.get(name) for name in endpoints) else "none"
    named = (os.environ.get(f"OTEL_{signal}_EXPORTER") or default).split(",")
    return tuple(name.strip() for name in named if name.strip() not in ("", "none"))


def _open(_settings: OpenTelemetryChannel, _connections: ConnectionReader) -> Recorder | None:
    """The recorder; None, and nothing imported, where the environment names no exporter."""
    chosen = {signal: exporters(signal) for signal in _SIGNALS}
    return _recorder(chosen["TRACES"], chosen["METRICS"]) if any(chosen.values()) else None


def _recorder(traces: tuple[str, ...], metrics: tuple[str, ...]) -> Recorder:
    try:
        recorder: Recorder = _RECORDER(traces, metrics)
    except ImportError as error:
        raise Unsupported(
            "OpenTelemetry's SDK is not installed in this interpreter", hint="pip install 'llm-pipeline[otel]'"
        ) from error
    return recorder


def _probe(_settings: OpenTelemetryChannel) -> str:
    """What `doctor` says.

    Raises:
        Unsupported: OpenTelemetry is not installed here.
        ConfigError: An exporter that the environment names is not.
    """
    chosen = {signal.lower(): exporters(signal) for signal in _SIGNALS}
    if not any(chosen.values()):
        return "nothing is sent from here: the environment has no OTEL_EXPORTER_OTLP_ENDPOINT"
    _recorder(chosen["traces"], chosen["metrics"])
    return ", ".join(f"{signal} by {' and '.join(names) or 'none'}" for signal, names in chosen.items())


ADAPTER = Adapter(config=OpenTelemetryChannel, open=_open, probe=_probe)
