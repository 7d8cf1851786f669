"""A stage's process: it reads a request file, runs the stage, and always writes an outcome.

Key, reuse, lease, work, publication, result: nothing half-done counts as done. Artifacts are published before the
stage's record, the record concludes the key's lease, and it counts only while the artifacts it names are whole.

The outcome is a file, or a document of the request's store where whoever started the process shares no file with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import JsonValue, ValidationError

from llm_pipeline.base.collector import imports_done
from llm_pipeline.base.digest import sha256_json
from llm_pipeline.base.durable import replace_durably
from llm_pipeline.base.entry import ArgumentParser, entry_point
from llm_pipeline.base.errors import (
    ConfigError,
    ExitCode,
    InternalError,
    StageCancelled,
    StageOutOfTime,
    Unsupported,
    as_pipeline_error,
    is_unexpected,
)
from llm_pipeline.base.logging import FAILURES, Lines, get_logger, write_json_lines
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.store import StoreModel
from llm_pipeline.release.candidate import target_of
from llm_pipeline.release.contract import (
    Stage,
    StageContext,
    StageFailure,
    StageOutput,
    StageRequest,
    StageResult,
    Timings,
)
from llm_pipeline.release.evidence_text import log_table, measured_table
from llm_pipeline.release.flow import FLOW, stage_names, step_named
from llm_pipeline.release.time_limit import OutOfTime, ended_by
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.store.documents import understood
from llm_pipeline.store.lease import lease_in_turn, lease_of
from llm_pipeline.store.provenance import Provenance, here
from llm_pipeline.store.signed_documents import (
    conclusion_problem,
    refusal,
    replace_document,
    signed_conclusion,
    write_signed,
)

log = get_logger(__name__)

IN_STORE = "store:"
"""What stands before a job's name where its outcome goes to the store."""

_RECORD_FORMAT = 3
"""Raised whenever a stage's record gets another form: a store with older ones computes anew, and fails nothing."""


@entry_point
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stage of a request file and write its outcome.

    Raises:
        ConfigError: The request cannot be read or is for another stage.
        Transient: The outcome cannot be written now.
    """
    parser = ArgumentParser(prog="python -m llm_pipeline.stages", description="Run one stage, for a runner.")
    parser.add_argument("stage")
    parser.add_argument("--request", type=Path, required=True)
    parser.add_argument("--result", required=True, help="file for the outcome, or store:JOB for the request's store")
    parser.add_argument("--log", type=Path, help="file that takes all output of the stage")
    options = parser.parse_args(arguments)
    if options.log:  # all output, of this process and of what it starts
        descriptor = os.open(options.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
    os.environ.setdefault("TQDM_DISABLE", "1")  # a task log has lines, not bars; read when a library imports tqdm
    write_json_lines()
    try:
        request = StageRequest.model_validate_json(options.request.read_bytes())
    except FileNotFoundError as problem:
        raise ConfigError("no such request file", where=str(options.request)) from problem
    except ValidationError as problem:
        raise ConfigError(f"not a stage request: {problem}", where=str(options.request)) from problem
    if request.stage != options.stage:
        raise ConfigError(f"the request is for {request.stage!r}, not {options.stage!r}", where=str(options.request))
    signal.signal(signal.SIGTERM, _cancel)
    try:
        with ended_by(request.time_limit, partial(_give_up, request, options.result)):
            outcome = execute(request)
    except _Cancelled:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        log.warning("stopped on request")
        stopped = StageCancelled("the stage was asked to stop", hint="run it again: finished work is kept")
        outcome = StageFailure.of(request, stopped)
    except OutOfTime as over:
        error = over.args[0]
        get_logger(FAILURES).error("%s", error)
        outcome = StageFailure.of(request, error)
        record_failure(request.store, outcome)
    _write(request, options.result, outcome)
    return ExitCode.GO if isinstance(outcome, StageResult) else outcome.error.exit_code


def _give_up(request: StageRequest, result: str, error: StageOutOfTime) -> None:
    """Called in another thread as the last resort, if the main thread does not return from native code."""
    try:
        log.error("the stage did not stop in time: killing its process")
        _write(request, result, StageFailure.of(request, error))
    finally:
        import psutil  # here: hardly any stage comes to this

        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        os._exit(ExitCode.INFRASTRUCTURE)


class _Cancelled(BaseException):
    """Raised by SIGTERM wherever the stage is, so that its `with` blocks end properly."""


def _cancel(_signal: int, _frame: FrameType | None) -> None:
    raise _Cancelled


def _write(request: StageRequest, result: str, outcome: StageResult | StageFailure) -> None:
    if result.startswith(IN_STORE):
        document = job_outcome_name(request.release_id, result.removeprefix(IN_STORE))
        signs = isinstance(outcome, StageResult) and publishes(request.stage)
        write = write_signed if signs else replace_document
        write(open_store(request.store), document, outcome.model_dump(mode="json"))
        return
    replace_durably(Path(result), outcome.model_dump_json(indent=1).encode())


def execute(request: StageRequest) -> StageResult | StageFailure:
    """Run a stage; every error comes back as data, with its traceback in the log if it is a fault."""
    try:
        outcome: StageResult | StageFailure = _execute(request)
    except (Exception, SystemExit) as error:  # the edge of the process; libraries call sys.exit, too
        known = as_pipeline_error(error, where=f"stage {request.stage}")
        if is_unexpected(error):
            log.exception("stage %s failed", request.stage)
        else:  # ours says all
            get_logger(FAILURES).error("%s", known.told)
        outcome = StageFailure.of(request, known)
    if isinstance(outcome, StageFailure):
        record_failure(request.store, outcome)
    else:
        with _noted():
            name = failure_name(request.release_id, request.stage, request.subject)
            open_store(request.store).delete_document(name)
    return outcome


def _execute(request: StageRequest) -> StageResult:
    started, clock = datetime.now(UTC), time.monotonic()
    stage = load_stage(request.stage)
    try:
        config = stage.config.model_validate(request.config)
    except ValidationError as error:
        raise ConfigError(f"the request does not fit stage {stage.name}: {error}", where=request.stage) from error
    store = open_store(request.store)
    content = key_content(stage, config, request.inputs, request.subject)
    result = _reuse(stage, store, content.key) if stage.reusable else _compute(stage, config, request, store, content)
    if result is None:
        with lease_in_turn(store, stage_record_name(content.key)) as lease:
            if (result := _reuse(stage, store, content.key)) is None:
                result = _compute(stage, config, request, store, content)
                lease.conclude(concluded(store, content, result, signed=stage.publishes))
    timings = Timings(started_at=started, total_seconds=time.monotonic() - clock)
    release_id = request.release_id if stage.name != "resolve" else result.release_id
    result = result.model_copy(update={"release_id": release_id, "subject": request.subject, "timings": timings})
    if result.judgement is None:
        log.info(Lines(measured_table(f"{stage.name} {request.subject}".strip(), result.metrics)))
    else:
        tell = log.info if result.judgement.verdict is Verdict.GO else log.error
        tell(Lines(log_table(result.judgement)))
    write = write_signed if stage.publishes else replace_document
    if stage.changes_release:
        outdate_summary(store, release_id)
    write(store, results_name(release_id, stage.name, request.subject), result.model_dump(mode="json"))
    return result


def _compute(
    stage: Stage[Any], config: Any, request: StageRequest, store: ArtifactStore, content: KeyContent
) -> StageResult:
    started, clock = datetime.now(UTC), time.monotonic()
    key = content.key
    workdir = Path(request.work_root) / stage.name / key[:24]
    workdir.mkdir(parents=True, exist_ok=True)
    title = f"{stage.name} {request.subject}".strip()
    read = ", ".join(f"{name} {ref}" for name, ref in request.inputs.items())
    log.info(f"{title} of {request.release_id} starts", inputs=read or "none", key=key[:12])
    inputs = {name: store.fetch(ref) for name, ref in request.inputs.items()}
    imports_done()  # garbage is collected as usual from here on
    context = StageContext(request=request, config=config, inputs=inputs, workdir=workdir, store=store, key=key)
    output: StageOutput = stage.run(context)
    if output.artifacts and not stage.publishes:  # its records are not signed
        made = ", ".join(sorted(output.artifacts))
        raise InternalError(f"stage {stage.name} is declared to publish nothing, and made artifacts: {made}")
    artifacts = _publish(context, content, output, started)
    shutil.rmtree(workdir, ignore_errors=True)
    return StageResult(
        release_id=output.release_id or request.release_id,
        stage=stage.name,
        subject=content.subject,
        key=key,
        artifacts=artifacts,
        metrics=dict(output.metrics),
        judgement=output.judgement,
        tools=content.tools,
        timings=Timings(started_at=started, total_seconds=time.monotonic() - clock),
    )


def _publish(
    context: StageContext[Any], content: KeyContent, output: StageOutput, started: datetime
) -> dict[str, ArtifactRef]:
    if not output.artifacts:
        return {}
    request, store = context.request, context.store
    provenance = Provenance(
        stage=f"{content.stage}/{content.version}",
        subject=content.subject,
        stage_key=content.key,
        release_id=request.release_id,
        config=content.config,
        inputs=request.inputs,
        tools=content.tools,
        started_at=started,
        finished_at=datetime.now(UTC),
        **here(),
    )
    refs = {}
    for name, produced in output.artifacts.items():
        if isinstance(produced, ArtifactRef):
            if produced not in request.inputs.values():
                raise InternalError(f"stage {request.stage} passes on {produced}, which is none of its inputs")
            refs[name] = produced
            continue
        ours = produced.directory.is_relative_to(context.workdir)  # not a directory of the store that is named again
        refs[name] = store.publish(produced.kind, produced.directory, provenance, consume=ours)
        log.info(f"published {name}", artifact=str(refs[name]), megabytes=store.manifest(refs[name]).size / 1e6)
    return refs


def _reuse(stage: Stage[Any], store: ArtifactStore, key: str) -> StageResult | None:
    found = _read_conclusion(store, key)
    if found is None:
        return None
    if problem := _distrust(store, key, *found):
        log.warning("a stored result cannot be trusted: computing it again", key=key[:12], problem=problem)
        return None
    result = found[0].result
    if stage.may_decide_again(result.judgement):
        log.info("it was undecided last time: measuring again", release=result.release_id, key=key[:12])
        return None
    for name, ref in result.artifacts.items():
        store.renew(ref)  # a retention that runs now leaves it alone
        if damage := store.check(ref):
            first = damage[0]
            words = f"a stored {name} is damaged: making it again"
            log.warning(words, artifact=str(ref), file=first.path, problem=first.problem)
            return None
    when = result.timings.started_at.strftime("%Y-%m-%d %H:%M:%S UTC")
    log.info(f"reused: release {result.release_id} computed this at {when}", key=key[:12])
    return result.model_copy(update={"reused": True})


def record_failure(config: StoreModel, failure: StageFailure) -> None:
    """Keep a stage's error for the report, until the stage ends well."""
    with _noted():
        name = failure_name(failure.release_id, failure.stage, failure.subject)
        replace_document(open_store(config), name, failure.model_dump(mode="json"))


@contextlib.contextmanager
def _noted() -> Iterator[None]:
    """A failure to keep an outcome for the report is logged and never hides the outcome itself."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is, the outcome itself must come back
        log.warning("the outcome could not be recorded in the release", reason=str(as_pipeline_error(error)))


def publishes(name: str) -> bool:
    """Whether a stage of that name publishes artifacts, and so signs its results where anything is signed."""
    return name not in stage_names() or load_stage(name).publishes


def load_stage(name: str) -> Stage[Any]:
    """The declaration of a stage.

    Raises:
        ConfigError: There is no such stage.
    """
    # ours first: none of a package has such a name, and to look for packages reads the metadata of all of them
    step = next((one for one in FLOW if one.name == name), None) or step_named(name)
    if step is None or not step.is_stage:
        raise ConfigError(f"unknown stage {name!r}", hint=f"stages are: {', '.join(stage_names())}")
    stage: Stage[Any] = import_module(step.module or f"llm_pipeline.stages.{step.stage_name}").STAGE
    return replace(stage, reusable=step.reusable)


class KeyContent(Frozen):
    """Everything that a stage's result depends on."""

    stage: str
    version: int
    subject: str
    config: dict[str, JsonValue]
    inputs: dict[str, ArtifactRef]
    tools: dict[str, str]

    @property
    def key(self) -> str:
        """The stage key: same content, same result. Records of another format are under other keys."""
        return sha256_json({"format": _RECORD_FORMAT, **self.model_dump(mode="json")})


class StageRecord(Frozen):
    """What the store keeps under a stage key, as the conclusion of the key's lease.

    Attributes:
        content: What the key hashes.
        result: What was computed, by the first release that needed it.
        signature: Of both under the key's name, if whoever computed it signs.
    """

    content: KeyContent
    result: StageResult
    signature: str | None = None

    def problem(self, key: str) -> str | None:
        """How it contradicts itself or the key that it was found under; None when it does not."""
        if self.content.key != key:
            return f"it is of stage key {self.content.key[:12]}"
        told = (self.result.key, self.result.stage, self.result.subject)
        if told != (key, self.content.stage, self.content.subject):
            return "its result is of another stage"
        return None


def key_content(stage: Stage[Any], config: Any, inputs: Mapping[str, ArtifactRef], subject: str) -> KeyContent:
    """What a stage's result depends on; that of a candidate is the same once it is chosen."""
    dumped = config.model_dump(mode="json")
    return KeyContent(
        stage=stage.name,
        version=stage.version,
        subject=target_of(subject) if stage.reusable else subject,
        config={name: value for name, value in dumped.items() if name not in stage.places},
        inputs=dict(sorted(inputs.items())),
        tools=tool_versions(stage, config),
    )


def stage_record_name(key: str) -> str:
    """Document of a stage key: its lease, which its holder concludes with a `StageRecord`."""
    return f"stages/{key}.json"


def read_stage_record(store: ArtifactStore, key: str) -> StageRecord | None:
    """What was concluded for a stage key, or None; whether it can be trusted is not checked.

    Raises:
        IntegrityError: The record cannot be understood.
    """
    found = _read_conclusion(store, key)
    return found[0] if found else None


def trusted_stage_record(store: ArtifactStore, key: str) -> StageRecord | None:
    """As `read_stage_record`, of a record that a release may go on with.

    Raises:
        IntegrityError: The record cannot be understood, is of another key, or is not signed as the store requires.
    """
    found = _read_conclusion(store, key)
    if found and (problem := _distrust(store, key, *found)):
        raise refusal(store, stage_record_name(key), problem)
    return found[0] if found else None


def concluded(
    store: ArtifactStore, content: KeyContent, result: StageResult, *, signed: bool = True
) -> dict[str, JsonValue]:
    """A stage's record as the conclusion of its key's lease, signed if this process signs."""
    record = StageRecord(content=content, result=result).model_dump(mode="json", exclude={"signature"})
    return signed_conclusion(store, stage_record_name(content.key), record) if signed else record


def _read_conclusion(store: ArtifactStore, key: str) -> tuple[StageRecord, dict[str, JsonValue]] | None:
    """A stage's record, and the document's own words, which the signature is of."""
    name = stage_record_name(key)
    document = store.read_document(name)
    conclusion = lease_of(document, name).conclusion if document else None
    if not conclusion:
        return None
    hint = "remove this document: its stage is then computed again"
    return understood(StageRecord, conclusion, name, hint=hint), conclusion


def _distrust(store: ArtifactStore, key: str, record: StageRecord, conclusion: dict[str, JsonValue]) -> str | None:
    """Why a record cannot be trusted, or None."""
    if problem := record.problem(key):
        return problem
    if publishes(record.content.stage):
        return conclusion_problem(store, stage_record_name(key), conclusion)
    return "it names artifacts, and its stage publishes none" if record.result.artifacts else None


def tool_versions(stage: Stage[Any], config: Any) -> dict[str, str]:
    """Versions of the stage's tools in this interpreter.

    Raises:
        Unsupported: One is not installed here.
    """
    versions = {}
    for tool in stage.tool_names(config):
        try:
            versions[tool] = metadata.version(tool)
        except metadata.PackageNotFoundError as error:
            raise Unsupported(
                f"stage {stage.name} needs {tool}, which is not installed in this interpreter",
                hint="the deployment's `environments` say which interpreter runs it: install it there",
            ) from error
    return versions


def results_name(release_id: str, stage: str, subject: str) -> str:
    """Name of the document that holds a stage's result within a release."""
    return f"releases/{release_id}/results/{stage}{'.' + subject if subject else ''}.json"


def failure_name(release_id: str, stage: str, subject: str) -> str:
    """Name of the file that holds the error a stage ended with; gone once it succeeds."""
    return results_name(release_id, stage, subject).replace("/results/", "/failures/")


def job_outcome_name(release_id: str, job_name: str) -> str:
    """Document with the outcome of a job that shares no file with its runner; it goes with its release."""
    return f"releases/{release_id}/jobs/{job_name}.json"


def summary_name(release_id: str) -> str:
    """Name of what the list of releases shows of one; empty while its records have to be read for that."""
    return f"summaries/{release_id}.json"


def outdate_summary(store: ArtifactStore, release_id: str) -> None:
    """Empty a release's summary, before its documents change; its report writes the next one.

    Raises:
        Transient: The store cannot be written now.
    """
    replace_document(store, summary_name(release_id), {})
