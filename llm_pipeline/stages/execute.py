"""Running one stage in this process: key, reuse, lease, work, publication, result.

Nothing half-done is ever taken for done: artifacts are published before the stage's record, the record is
written under the lease, and a record counts only while the artifacts it names are whole.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

from llm_pipeline import __version__
from llm_pipeline.digest import sha256_json
from llm_pipeline.errors import ConfigError, PipelineError, Terminal, Transient, Unsupported
from llm_pipeline.logging import get_logger
from llm_pipeline.stages.contract import (
    ArtifactRef,
    Stage,
    StageContext,
    StageFailure,
    StageOutput,
    StageRequest,
    StageResult,
    Timings,
)
from llm_pipeline.stages.registry import load_stage
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.store.artifact_store import Conflict
from llm_pipeline.store.lease import Lease, LeaseHeld

log = get_logger(__name__)

_LEASE_POLL_SECONDS = 1.0


class InternalError(Terminal):
    """A fault of this package or of a tool below it: the traceback is in the stage's log."""


def execute(request: StageRequest) -> StageResult | StageFailure:
    """Run a stage; every error comes back as data, with its traceback in the log if it is a fault."""
    outcome = _outcome(request)
    _record_failure(request, outcome if isinstance(outcome, StageFailure) else None)
    return outcome


def _outcome(request: StageRequest) -> StageResult | StageFailure:
    try:
        return _execute(request)
    except PipelineError as error:
        log.error(str(error))  # noqa: TRY400 - the message is made for people; its traceback would bury it
        return _failure(request, error)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            return _fault(request, error)
        full = Transient(f"the disk is full: {error}", hint="free disk space, then run the same command again")
        log.error(str(full))  # noqa: TRY400
        return _failure(request, full)
    except Exception as error:  # noqa: BLE001 - the edge of the process: re-raised as ours, with the traceback logged
        return _fault(request, error)


def stage_key(stage: Stage[Any], config: Any, inputs: Mapping[str, ArtifactRef], subject: str) -> str:
    """The digest of everything that a stage's result depends on."""
    dumped = config.model_dump(mode="json")
    return sha256_json(
        {
            "stage": stage.name,
            "version": stage.version,
            "subject": subject,
            "config": {name: value for name, value in dumped.items() if name not in stage.places},
            "inputs": {name: ref.model_dump() for name, ref in sorted(inputs.items())},
            "tools": tool_versions(stage),
        }
    )


def tool_versions(stage: Stage[Any]) -> dict[str, str]:
    """Versions of the stage's tools in this interpreter.

    Raises:
        Unsupported: One is not installed here.
    """
    versions = {}
    for tool in stage.tools:
        try:
            versions[tool] = metadata.version(tool)
        except metadata.PackageNotFoundError as error:
            raise Unsupported(
                f"stage {stage.name} needs {tool}, which is not installed in this interpreter",
                hint=f"run it in the {stage.environment} environment",
            ) from error
    return versions


def results_name(release_id: str, stage: str, subject: str) -> str:
    """Name of the document that holds a stage's result within a release."""
    return f"releases/{release_id}/results/{stage}{'.' + subject if subject else ''}.json"


def failure_name(release_id: str, stage: str, subject: str) -> str:
    """Name of the file that holds the error a stage ended with; gone once it succeeds."""
    return results_name(release_id, stage, subject).replace("/results/", "/failures/")


def replace_document(store: ArtifactStore, name: str, value: Mapping[str, JsonValue]) -> None:
    """Write a document whatever it held before."""
    while True:
        current = store.read_document(name)
        with contextlib.suppress(Conflict):
            store.write_document(name, value, current.revision if current else None)
            return


def _execute(request: StageRequest) -> StageResult:
    started, clock = datetime.now(UTC), time.monotonic()
    stage = load_stage(request.stage)
    try:
        config = stage.config.model_validate(request.config)
    except ValidationError as error:
        raise ConfigError(f"the request does not fit stage {stage.name}: {error}", where=request.stage) from error
    store = open_store(request.store)
    key = stage_key(stage, config, request.inputs, request.subject)
    if not stage.reusable:
        result = _compute(stage, config, request, store, key)
    else:
        result = _reuse(store, key) or _compute_once(stage, config, request, store, key)
    timings = Timings(
        started_at=started,
        total_seconds=time.monotonic() - clock,
        tool_seconds=0.0 if result.reused else result.timings.tool_seconds,
    )
    release_id = request.release_id if stage.name != "resolve" else result.release_id
    result = result.model_copy(update={"release_id": release_id, "timings": timings})
    replace_document(store, results_name(release_id, stage.name, request.subject), result.model_dump(mode="json"))
    return result


def _compute_once(stage: Stage[Any], config: Any, request: StageRequest, store: ArtifactStore, key: str) -> StageResult:
    """Compute under the lease of the key; whoever waits for the lease reuses what its holder made."""
    waited = False
    while True:
        try:
            with Lease(store, key) as lease:
                if done := _reuse(store, key):
                    return done
                result = _compute(stage, config, request, store, key)
                lease.check()
                replace_document(store, f"stages/{key}.json", result.model_dump(mode="json"))
                return result
        except LeaseHeld as held:
            if not waited:
                log.info("the same work is being done elsewhere; waiting for its result", reason=held.message)
            waited = True
            time.sleep(_LEASE_POLL_SECONDS)


def _compute(stage: Stage[Any], config: Any, request: StageRequest, store: ArtifactStore, key: str) -> StageResult:
    started, clock = datetime.now(UTC), time.monotonic()
    workdir = Path(request.work_root) / stage.name / key[:24]
    workdir.mkdir(parents=True, exist_ok=True)
    log.info(f"{stage.name} starts", subject=request.subject or "-", release=request.release_id, key=key[:12])
    inputs = {name: store.fetch(ref) for name, ref in request.inputs.items()}
    context = StageContext(request=request, config=config, inputs=inputs, workdir=workdir, store=store, key=key)
    output: StageOutput = stage.run(context)
    artifacts = _publish(stage, request, store, key, output)
    shutil.rmtree(workdir, ignore_errors=True)
    return StageResult(
        release_id=output.release_id or request.release_id,
        stage=stage.name,
        subject=request.subject,
        key=key,
        artifacts=artifacts,
        metrics=dict(output.metrics),
        judgement=output.judgement,
        tools=tool_versions(stage),
        timings=Timings(started_at=started, total_seconds=time.monotonic() - clock, tool_seconds=output.tool_seconds),
    )


def _publish(
    stage: Stage[Any], request: StageRequest, store: ArtifactStore, key: str, output: StageOutput
) -> dict[str, ArtifactRef]:
    provenance: dict[str, JsonValue] = {
        "stage": stage.name,
        "subject": request.subject,
        "stage_key": key,
        "release_id": request.release_id,
        "made_at": datetime.now(UTC).isoformat(),
        "llm_pipeline": __version__,
        "tools": dict(tool_versions(stage)),
        "inputs": {name: ref.model_dump() for name, ref in request.inputs.items()},
    }
    refs = {}
    for name, produced in output.artifacts.items():
        refs[name] = store.publish(produced.kind, produced.directory, provenance)
        log.info(f"published {name}", artifact=str(refs[name]), megabytes=store.size(refs[name]) / 1e6)
    return refs


def _reuse(store: ArtifactStore, key: str) -> StageResult | None:
    document = store.read_document(f"stages/{key}.json")
    if document is None:
        return None
    result = StageResult.model_validate(document.value)
    for name, ref in result.artifacts.items():
        if damage := store.verify(ref):
            first = damage[0]
            log.warning(
                f"a stored {name} is damaged and is made again",
                artifact=str(ref),
                file=first.path,
                problem=first.problem,
            )
            return None
    when = result.timings.started_at.strftime("%Y-%m-%d %H:%M:%S UTC")
    log.info(f"reused: release {result.release_id} computed this at {when}", key=key[:12])
    return result.model_copy(update={"reused": True})


def _record_failure(request: StageRequest, failure: StageFailure | None) -> None:
    """Keep the error for the report; not being able to is no reason to hide the error itself."""
    name = failure_name(request.release_id, request.stage, request.subject)
    try:
        store = open_store(request.store)
        if failure is None:
            store.delete_document(name)
        else:
            replace_document(store, name, failure.model_dump(mode="json"))
    except PipelineError as error:
        log.warning("the outcome could not be noted in the release", reason=str(error))


def _failure(request: StageRequest, error: PipelineError) -> StageFailure:
    return StageFailure(
        release_id=request.release_id, stage=request.stage, subject=request.subject, error=error.to_document()
    )


def _fault(request: StageRequest, error: Exception) -> StageFailure:
    log.error(f"stage {request.stage} failed", exc_info=error)
    wrapped = InternalError(
        f"{type(error).__name__}: {error}", where=f"stage {request.stage}", hint="see the traceback in the stage's log"
    )
    return _failure(request, wrapped)
