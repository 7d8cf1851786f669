"""Keeps each release as a run of MLflow: what it is as parameters, what its stages measured as metrics, its report."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from llm_pipeline.base.errors import Unsupported
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.measured_cost import chosen_variants, measured_cost
from llm_pipeline.release.record import ReleaseRecord, read_release_record, report_name
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.store.artifact_store import ArtifactStore

_RELEASE = "llm_pipeline.release"
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
_NOT_ALLOWED = re.compile(r"[^\w\-. /]")


def keep_in_mlflow(store: ArtifactStore, experiment: str, release_id: str) -> str | None:
    """Log a release, once its report is made, to the server that `MLFLOW_TRACKING_URI` names; returns the run's id.

    A release that is run again gets its run replaced. Without the variable nothing is kept, and None is returned.

    Raises:
        Unsupported: MLflow is not installed here.
        mlflow.exceptions.MlflowException: The server does not take it.
    """
    address = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    if not address:
        return None
    for name, value in _PATIENCE.items():  # a task does not wait for a server that is away
        os.environ.setdefault(name, value)
    try:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param, RunTag
    except ImportError as error:
        hint = "pip install 'llm-pipeline[mlflow]'"
        raise Unsupported("MLflow is not installed in this interpreter", hint=hint) from error
    record = read_release_record(store, release_id)
    client = MlflowClient(tracking_uri=address)
    there = client.get_experiment_by_name(experiment)
    kept_in = there.experiment_id if there else client.create_experiment(experiment)
    for earlier in client.search_runs([kept_in], f"tags.`{_RELEASE}` = '{release_id}'"):
        client.delete_run(earlier.info.run_id)
    began = round(1000 * record.created_at.timestamp())
    run_id = str(client.create_run(kept_in, began, {_RELEASE: release_id}, run_name=release_id).info.run_id)
    metrics, tags = [], []
    results = ReleaseProgress(store, record).results().values()
    variants = chosen_variants(results)
    for result in results:
        place = _NOT_ALLOWED.sub("_", "/".join(filter(None, (result.stage, *result.subject.split(":")))))
        at = round(1000 * (result.timings.started_at.timestamp() + result.timings.total_seconds))
        metrics += [Metric(f"{place}/{name}"[:250], value, at, 0) for name, value in _figures(record, result, variants)]
        tags.append(RunTag(f"{place}/key", result.key))
        if result.judgement is not None:
            tags.append(RunTag(f"{place}/verdict", result.judgement.verdict.value))
    client.log_batch(run_id, params=[Param(name, value[:500]) for name, value in _parameters(record)], tags=tags[:100])
    for first in range(0, len(metrics), 1000):  # as many as a server takes at once
        client.log_batch(run_id, metrics=metrics[first : first + 1000])
    with TemporaryDirectory() as directory:
        report = Path(directory) / "report.html"
        report.write_bytes(store.read_file(report_name(release_id, "html")))
        client.log_artifact(run_id, str(report))
    client.set_terminated(run_id, "FAILED" if store.list_documents(f"releases/{release_id}/failures") else "FINISHED")
    return run_id


def _parameters(record: ReleaseRecord) -> Iterator[tuple[str, str]]:
    release = record.release
    yield "config", release.name
    yield "model", record.model.id
    yield "commit", record.model.commit
    yield "policy", release.policy.name
    yield "deployment", record.deployment.name
    yield "recipes", ", ".join(recipe.name for recipe in release.recipes)
    for target in release.targets:
        yield f"target {target.name}", f"{target.engine} on {target.accelerator_count} x {target.accelerator}"


def _figures(record: ReleaseRecord, result: StageResult, variants: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """A stage's own metrics, what its verdict rests on, and what it cost."""
    cost = measured_cost(record, result, variants)
    found: dict[str, Any] = dict(result.metrics)
    if result.judgement is not None:
        found |= {fact.name: fact.measured for fact in result.judgement.evidence}
    found |= {"seconds": cost.seconds, "gpu_hours": cost.gpu_hours, "cost": cost.price}
    for name, value in found.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield _NOT_ALLOWED.sub("_", name), float(value)
