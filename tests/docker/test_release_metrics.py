"""The series that the dashboard of releases asks for are those that the channel `opentelemetry` sends."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is not installed")

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "notifications")]

from otlp_receiver import otlp_receiver
from store_history import GO, NO_GO, History

from llm_pipeline.base.errors import StageOutOfTime, Transient
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.notifications import outbox
from llm_pipeline.notifications.channel import no_connections
from llm_pipeline.notifications.event import Origin
from llm_pipeline.notifications.happened import ended, failed
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.record import read_release_record, release_record_name
from llm_pipeline.store.signed_documents import replace_document

EXPORTS = Path(__file__).parent / "exports" / "releases.txt"
PRICED = {
    "notifications": {"telemetry": {"kind": "opentelemetry"}},
    "quantization_host": {"accelerator": "h100-80gb", "count": 2},
    "gpu_hour_prices": {"h100-80gb": 3.0},
    "currency": "EUR",
}


def test_the_recorded_series_are_those_that_are_sent(tmp_path, monkeypatch):
    history = History(tmp_path)
    release_id = history.resolve(1)
    record = read_release_record(history.store, release_id)
    deployment = Deployment.model_validate(history.deployment.model_dump() | PRICED)
    changed = record.model_copy(update={"deployment": deployment})
    replace_document(history.store, release_record_name(release_id), changed.model_dump(mode="json"))
    results: list[StageResult] = [
        history.stage(release_id, "quantize", "fp8"),
        history.stage(release_id, "accuracy", "fp8", judgement=GO),
        history.stage(release_id, "load_test", "cpu", judgement=NO_GO),
    ]
    reused = history.stage(release_id, "download").model_copy(update={"reused": True})
    replace_document(history.store, f"releases/{release_id}/results/download.json", reused.model_dump(mode="json"))
    here, began = Origin("here", release_id), datetime.now(UTC)
    events = [ended(here, one) for one in (*results, reused)]
    events += [
        failed(here, "build", "cpu", StageOutOfTime("hung"), key="1", began=began),
        failed(here, "build", "cpu", Transient("away"), key="2", began=began, tried_again=True),
    ]
    with otlp_receiver() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        assert outbox.tell(history.store, deployment, no_connections, events=events) == len(events)
    assert received.prometheus() == EXPORTS.read_text().splitlines()
    spans = {span.name: span for span in received.spans}
    cost = {one.key: one.value for one in spans["quantize fp8"].attributes}
    assert cost["llm_pipeline.cost"].double_value == pytest.approx(3.0 * 2 * 1.0 / 3600)
    assert cost["llm_pipeline.currency"].string_value == "EUR"
