"""Keeps each release as one run of MLflow: what it is as parameters, what its stages measured as metrics, its report.

What is logged twice is the same twice: the run is found again by its release, the time of a metric is the stage's, and
of the same metric at the same time a server keeps one.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS, ErrorCode

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.notifications.channel import NotSent
from llm_pipeline.notifications.event import Event
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.execute import results_name
from llm_pipeline.release.measured_cost import measured_cost
from llm_pipeline.release.record import ReleaseRecord, read_release_record, report_name
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.documents import understood

_RELEASE = "llm_pipeline.release"
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""A task does not wait for a server that is away: the event is sent later."""
_BATCH = 1000
_LONGEST = 500
_NOT_ALLOWED = re.compile(r"[^\w\-. /]")
_LAST_STAGE = "report"


class RunRecorder:
    """One run of MLflow a release, however often and by whom it is run.

    Args:
        address: The tracking server, as `MLFLOW_TRACKING_URI` has it.
        experiment: Name of the experiment.
    """

    def __init__(self, address: str, experiment: str) -> None:
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        self._client = MlflowClient(tracking_uri=address)
        self._experiment = experiment

    def record(self, event: Event, store: ArtifactStore) -> None:
        """Keep what a stage came to; see `Recorder`.

        Raises:
            NotSent: The server does not take it now.
        """
        if event.kind != "stage":
            return
        try:
            record = read_release_record(store, event.release_id)
        except ConfigError:
            return  # removed since
        name = results_name(event.release_id, event.stage, event.subject)
        document = store.read_document(name)
        try:
            run_id = self._run(record)
            if document:
                self._log(run_id, record, understood(StageResult, document.value, name))
            if event.stage == _LAST_STAGE:
                self._conclude(run_id, event, store)
        except MlflowException as error:
            raise NotSent(f"MLflow did not take a release: {error.error_code}", hint="see MLFLOW_*") from error

    def look(self) -> None:
        """Ask the server for anything.

        Raises:
            NotSent: It does not answer.
        """
        try:
            self._client.search_experiments(max_results=1)
        except MlflowException as error:
            raise NotSent(f"MLflow does not answer: {error.error_code}", hint="see MLFLOW_*") from error

    def _run(self, record: ReleaseRecord) -> str:
        """The release's run; made if there is none, and running again if it had ended."""
        experiment = self._experiment_id()
        wanted = f"tags.`{_RELEASE}` = '{record.release_id}'"
        found = self._client.search_runs([experiment], wanted, order_by=["attributes.start_time ASC"], max_results=1)
        if found:
            run_id = str(found[0].info.run_id)
            if found[0].info.status != "RUNNING":
                self._client.update_run(run_id, status="RUNNING")
            return run_id
        began = _milliseconds(record.created_at.timestamp())
        tags = {_RELEASE: record.release_id}
        made = self._client.create_run(experiment, began, tags, run_name=record.release_id)
        run_id = str(made.info.run_id)
        self._client.log_batch(run_id, params=[Param(name, value[:_LONGEST]) for name, value in _parameters(record)])
        return run_id

    def _experiment_id(self) -> str:
        if there := self._client.get_experiment_by_name(self._experiment):
            return str(there.experiment_id)
        try:
            return str(self._client.create_experiment(self._experiment))
        except MlflowException as error:
            there = self._client.get_experiment_by_name(self._experiment)
            if error.error_code != ErrorCode.Name(RESOURCE_ALREADY_EXISTS) or there is None:
                raise
            return str(there.experiment_id)  # made by another release just now

    def _log(self, run_id: str, record: ReleaseRecord, result: StageResult) -> None:
        at = _milliseconds(result.timings.started_at.timestamp() + result.timings.total_seconds)
        metrics = [Metric(name, value, at, 0) for name, value in _metrics(record, result)]
        tags = [RunTag(f"{_place(result)}/key", result.key)]
        if result.judgement is not None:
            tags.append(RunTag(f"{_place(result)}/verdict", result.judgement.verdict.value))
        self._client.log_batch(run_id, metrics=metrics[:_BATCH], tags=tags)

    def _conclude(self, run_id: str, event: Event, store: ArtifactStore) -> None:
        """Upload the report, and end the run: it failed if a stage ended with an error."""
        with TemporaryDirectory() as directory:
            for suffix in ("html", "json"):
                with contextlib.suppress(FileNotFoundError):
                    path = Path(directory) / f"report.{suffix}"
                    path.write_bytes(store.read_file(report_name(event.release_id, suffix)))
                    self._client.log_artifact(run_id, str(path))
        failed = store.list_documents(f"releases/{event.release_id}/failures")
        self._client.set_terminated(run_id, "FAILED" if failed else "FINISHED", _milliseconds(event.at.timestamp()))


def _parameters(record: ReleaseRecord) -> Iterator[tuple[str, str]]:
    release = record.release
    yield "config", release.name
    yield "model", record.model.id
    yield "commit", record.model.commit
    yield "policy", release.policy.name
    yield "deployment", record.deployment.name
    yield "recipes", ", ".join(recipe.name for recipe in release.recipes)
    yield "targets", ", ".join(target.name for target in release.targets)
    for target in release.targets:
        yield f"{target.name}/engine", target.engine
        yield f"{target.name}/accelerator", f"{target.accelerator_count} x {target.accelerator}"


def _metrics(record: ReleaseRecord, result: StageResult) -> Iterator[tuple[str, float]]:
    """Figures of a stage: its own, what its verdict rests on, and what it cost."""
    place, cost = _place(result), measured_cost(record, result)
    found: dict[str, Any] = dict(result.metrics)
    if result.judgement is not None:
        found |= {fact.name: fact.measured for fact in result.judgement.evidence}
    found |= {"seconds": cost.seconds, "gpu_hours": cost.gpu_hours, "cost": cost.price}
    for name, value in found.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield _NOT_ALLOWED.sub("_", f"{place}/{name}")[:250], float(value)


def _place(result: StageResult) -> str:
    """A stage of a recipe or target, as the names of metrics begin."""
    return _NOT_ALLOWED.sub("_", "/".join(filter(None, (result.stage, *result.subject.split(":")))))


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)
