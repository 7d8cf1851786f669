"""The command line: `llm-pipeline run | plan | stage | report | releases | verify | rollback`.

Exit codes: 0 GO, 1 NO_GO, 2 INCONCLUSIVE, 3 ANOMALOUS, 4 bad input, 5 infrastructure.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from llm_pipeline import __version__
from llm_pipeline.errors import ExitCode, PipelineError, from_document
from llm_pipeline.logging import ReadableFormatter

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    options = _parser().parse_args(arguments)
    if options.command != "stage":
        _log_for_people(verbose=getattr(options, "verbose", False))
    try:
        code: int = options.run(options)
    except PipelineError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: what was running was stopped; the same command goes on from here\n")
        return _INTERRUPTED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="llm-pipeline", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a release on this machine, without Airflow")
    run.add_argument("config", type=Path, help="a release config, e.g. configs/releases/demo.yaml")
    run.add_argument("--revision", help="branch, tag or commit instead of the config's")
    answer = run.add_mutually_exclusive_group()
    answer.add_argument("--approve", action="store_const", const=True, dest="answer", help="approve production now")
    answer.add_argument("--reject", action="store_const", const=False, dest="answer", help="stop before production")
    run.add_argument("--verbose", action="store_true", help="show every log line of every stage")
    run.set_defaults(run=_run)

    plan = commands.add_parser("plan", help="check a release without spending anything")
    plan.add_argument("config", type=Path)
    plan.add_argument("--json", action="store_true", help="print the plan as JSON")
    plan.set_defaults(run=_plan)

    stage = commands.add_parser("stage", help="run one stage (used by the runners)")
    stage_commands = stage.add_subparsers(dest="stage_command", required=True)
    stage_run = stage_commands.add_parser("run")
    stage_run.add_argument("name")
    stage_run.add_argument("--request", type=Path, required=True)
    stage_run.add_argument("--result", type=Path, required=True)
    stage_run.set_defaults(run=_stage_run)

    releases = commands.add_parser("releases", help="list the releases of a deployment")
    releases.add_argument("deployment", type=Path, help="a deployment file, e.g. configs/deployments/local.yaml")
    releases.set_defaults(run=_releases)

    report = commands.add_parser("report", help="write a release's report again and say where it is")
    report.add_argument("deployment", type=Path)
    report.add_argument("release_id")
    report.set_defaults(run=_report)

    verify = commands.add_parser("verify", help="check every artifact of a release, byte by byte")
    verify.add_argument("deployment", type=Path)
    verify.add_argument("release_id")
    verify.set_defaults(run=_verify)

    rollback = commands.add_parser("rollback", help="bring the previous production release of a model back")
    rollback.add_argument("deployment", type=Path)
    rollback.add_argument("model_id", help="organisation/name")
    rollback.add_argument("gpu_target", metavar="target", help="the target's name, e.g. cpu")
    rollback.set_defaults(run=_rollback)
    return parser


def _log_for_people(*, verbose: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ReadableFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("llm_pipeline").setLevel(logging.INFO)
    logging.getLogger("llm_pipeline.stage").setLevel(logging.INFO if verbose else logging.WARNING)


def _run(options: argparse.Namespace) -> int:
    from llm_pipeline.interruption import interrupt_on_termination
    from llm_pipeline.local_run import LocalRun, ask_on_terminal

    interrupt_on_termination()
    answer: bool | None = options.answer
    approve = ask_on_terminal if answer is None else lambda _flow: answer
    return LocalRun(options.config, approve=approve, revision=options.revision).run()


def _plan(options: argparse.Namespace) -> int:
    from llm_pipeline.planning.plan import format_plan, plan_release

    plan = plan_release(options.config)
    sys.stdout.write(plan.model_dump_json(indent=1) + "\n" if options.json else format_plan(plan))
    return ExitCode.GO


def _stage_run(options: argparse.Namespace) -> int:
    from llm_pipeline.stages.process import run_stage_process

    return run_stage_process(options.name, options.request, options.result)


def _releases(options: argparse.Namespace) -> int:
    from llm_pipeline.config.loading import load_deployment
    from llm_pipeline.flow import Flow
    from llm_pipeline.store import open_store

    deployment = load_deployment(options.deployment)
    for name in open_store(deployment.store).list_documents("releases"):
        if name.endswith("/release.json"):
            flow = Flow.open(deployment, name.split("/")[1])
            record = flow.record
            sys.stdout.write(
                f"{record.release_id}  {record.model.id}@{record.model.commit[:8]}  {len(flow.results())} results\n"
            )
    return ExitCode.GO


def _report(options: argparse.Namespace) -> int:
    from llm_pipeline.config.loading import load_deployment
    from llm_pipeline.flow import Flow
    from llm_pipeline.stages.contract import StageFailure
    from llm_pipeline.stages.execute import execute

    flow = Flow.open(load_deployment(options.deployment), options.release_id)
    outcome = execute(flow.request("report"))
    if isinstance(outcome, StageFailure):
        raise from_document(outcome.error)
    sys.stdout.write(f"{outcome.metrics['report']}\n")
    return ExitCode.GO


def _verify(options: argparse.Namespace) -> int:
    from llm_pipeline.config.loading import load_deployment
    from llm_pipeline.flow import Flow

    flow = Flow.open(load_deployment(options.deployment), options.release_id)
    damaged = 0
    for (stage, subject), result in sorted(flow.results().items()):
        for name, ref in result.artifacts.items():
            found = flow.store.verify(ref)
            damaged += bool(found)
            state = "; ".join(f"{item.path}: {item.problem}" for item in found) or "ok"
            sys.stdout.write(f"{stage} {subject} {name} {ref}: {state}\n")
    return ExitCode.GO if not damaged else ExitCode.INFRASTRUCTURE


def _rollback(options: argparse.Namespace) -> int:
    from llm_pipeline.canary.promotion import rollback_production
    from llm_pipeline.config.loading import load_deployment
    from llm_pipeline.store import open_store

    deployment = load_deployment(options.deployment)
    pointers = rollback_production(open_store(deployment.store), deployment, options.model_id, options.gpu_target)
    sys.stdout.write(f"production is release {pointers.production.release_id if pointers.production else 'none'}\n")
    return ExitCode.GO
