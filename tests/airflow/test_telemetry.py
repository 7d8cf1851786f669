"""The channel `opentelemetry`: a release's trace and the counters of all, read back from a real OTLP receiver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from llm_pipeline_airflow.dag_factory import release_dag

from llm_pipeline.adapters.opentelemetry.adapter import ADAPTER, OpenTelemetryChannel
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.local_run import LocalRun
from llm_pipeline.notifications import outbox
from llm_pipeline.release.loading import load_release
from llm_pipeline.release_progress import ReleaseProgress

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is not installed")

sys.path.insert(0, str(Path(__file__).parents[1] / "notifications"))

from otlp_receiver import attributes, otlp_receiver

RELEASE = "tiny-01234567-00000000"
CHANNEL = "\nnotifications: { telemetry: { kind: opentelemetry } }\n"


@pytest.fixture
def received(monkeypatch):
    with otlp_receiver() as telemetry:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", telemetry.url)
        monkeypatch.setattr(outbox, "PAUSE_SECONDS", 0.0)
        monkeypatch.setattr(outbox, "PAUSE_SECONDS", 0.0)
        yield telemetry


@pytest.fixture
def told(project, in_process):
    """A release whose deployment has the channel."""
    deployment = project.root / "configs/deployments/here.yaml"
    deployment.write_text(deployment.read_text() + CHANNEL)
    in_process.ran.clear()
    return project


def by_name(telemetry):
    names = [span.name for span in telemetry.spans]
    assert len(set(names)) == len(names), f"each span once: {names}"
    return {span.name: span for span in telemetry.spans}


def test_a_release_is_one_trace_with_a_span_for_each_stage(told, received):
    told.script(**{"accuracy/small": {"verdict": "NO_GO"}})
    LocalRun(told.config, approve=lambda _: True).run()
    flow = ReleaseProgress.open(load_release(told.config).deployment, RELEASE)
    spans, results = by_name(received), flow.results()
    root = spans.pop(f"release {RELEASE}")
    assert {tuple(name.partition(" ")[::2]) for name in spans} == set(results)
    assert not root.parent_span_id
    for name, span in spans.items():
        assert (span.trace_id, span.parent_span_id) == (root.trace_id, root.span_id), name
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano, name
        assert span.end_time_unix_nano <= root.end_time_unix_nano, name
        result, said = results[tuple(name.partition(" ")[::2])], attributes(span)
        assert (said["llm_pipeline.stage_key"], said["llm_pipeline.reused"]) == (result.key, result.reused)
        assert said["llm_pipeline.gpu_hours"] >= 0.0
        took = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        assert took == pytest.approx(result.timings.total_seconds, abs=1e-3)
    assert attributes(spans["accuracy small"])["llm_pipeline.verdict"] == "NO_GO"
    assert attributes(spans["download"])["llm_pipeline.model"] == flow.record.model.id
    assert received.resources[0]["service.name"] == "llm-pipeline"
    ends = {dict(labels)["stage"]: count for (name, _, labels), count in received.points.items() if "ends" in name}
    assert ends["canary"] == sum(stage == "canary" for stage, _ in results)


@pytest.mark.thorough
def test_airflow_and_the_run_without_it_give_the_same_spans_and_counters_go_on(
    told, received, airflow_database, monkeypatch
):
    LocalRun(told.config, approve=lambda _: True).run()
    local, counted = by_name(received), dict(received.points)
    received.spans.clear()
    monkeypatch.setenv("AIRFLOW__LLM_PIPELINE__RELEASES", str(told.config.parent))
    release_dag(told.config).test()
    by_airflow = by_name(received)
    no_need = {f"rollback {target}" for target in ("cpu-a", "cpu-b")}  # its task looks, and the local run does not
    assert by_airflow.keys() - no_need == local.keys()
    assert len({span.trace_id for span in by_airflow.values()}) == 1
    assert by_airflow["download"].trace_id != local["download"].trace_id, "another run of the release"
    assert attributes(by_airflow["download"])["llm_pipeline.reused"] is True
    assert all(received.points[series] >= value for series, value in counted.items())
    reused = [labels for (_, _, labels) in received.points if ("outcome", "reused") in labels]
    assert reused


def test_doctor_says_what_is_sent(monkeypatch):
    settings = OpenTelemetryChannel(kind="opentelemetry")
    assert "no OTEL_EXPORTER_OTLP_ENDPOINT" in ADAPTER.probe(settings)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9/v1/traces")
    assert ADAPTER.probe(settings) == "traces by otlp, metrics by none"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon")
    with pytest.raises(ConfigError, match="no exporter 'carrier-pigeon' of OpenTelemetry's traces"):
        ADAPTER.probe(settings)


def test_without_an_exporter_nothing_is_imported():
    code = (
        "import sys\n"
        "from llm_pipeline.notifications.channel import channels\n"
        "from llm_pipeline.config.notifications import Notifications\n"
        "from pydantic import TypeAdapter\n"
        "config = TypeAdapter(Notifications).validate_python({'t': {'kind': 'opentelemetry'}})\n"
        "assert list(channels(config)) == []\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    disabled = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"}
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **disabled})
