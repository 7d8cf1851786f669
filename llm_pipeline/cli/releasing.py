"""Commands about one release: `plan`, `run`, `stage`, `report`."""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path

from llm_pipeline.base.errors import ExitCode, from_document
from llm_pipeline.cli.deployment_option import Commands, add_deployment_option, deployment_of
from llm_pipeline.cli.texts import write_files, write_lines

_REPLACE = "take the release's places over from the models that hold them; their users get this one once it is promoted"


def add_commands(commands: Commands) -> None:
    """Add them to the parser."""
    run = commands.add_parser("run", help="run a release on this machine, without Airflow")
    run.add_argument("config", type=Path, help="a release config, e.g. configs/releases/demo.yaml")
    run.add_argument("--revision", help="branch, tag or commit instead of the config's")
    answer = run.add_mutually_exclusive_group()
    answer.add_argument("--approve", action="store_const", const=True, dest="answer", help="approve production now")
    answer.add_argument("--reject", action="store_const", const=False, dest="answer", help="stop before production")
    run.add_argument("--replace", action="store_true", help=_REPLACE)
    run.add_argument("--verbose", action="store_true", help="show every log line of every stage")
    run.set_defaults(run=_run)

    plan = commands.add_parser("plan", help="check a release without spending anything")
    plan.add_argument("config", type=Path)
    plan.add_argument("--replace", action="store_true", help=_REPLACE)
    plan.add_argument("--json", action="store_true", help="print the plan as JSON")
    plan.add_argument("--output", type=Path, metavar="DIR", help="write plan.json and plan.txt there, too")
    plan.add_argument("--predict", action="store_true", help="use AIConfigurator too, if it is installed (slow)")
    plan.add_argument("--store-seconds", type=float, metavar="SECONDS", help="longest wait for the store's listing")
    plan.set_defaults(run=_plan)

    stage = commands.add_parser("stage", help="run one stage (used by the runners)")
    stage_commands = stage.add_subparsers(dest="stage_command", required=True)
    stage_run = stage_commands.add_parser("run")
    stage_run.add_argument("name")
    stage_run.add_argument("--request", type=Path, required=True)
    stage_run.add_argument("--result", required=True, help="file for the outcome, or store:JOB for the request's store")
    stage_run.add_argument("--log", type=Path, help="file that takes all output of the stage")
    stage_run.set_defaults(run=_stage_run)

    report = commands.add_parser("report", help="write a release's report again and print its path")
    report.add_argument(
        "reference", metavar="REF", help="a release (or the beginning of its id), production:org/model/target"
    )
    add_deployment_option(report)
    report.set_defaults(run=_report)


def _run(options: argparse.Namespace) -> int:
    from llm_pipeline.local_run import LocalRun, ask_on_terminal
    from llm_pipeline.operations.last_words import last_words

    answer: bool | None = options.answer
    approve = ask_on_terminal if answer is None else lambda _question: answer
    release = LocalRun(options.config, approve=approve, revision=options.revision, replace=options.replace)
    verdict = release.run()
    if release.flow is not None:
        write_lines(last_words(release.flow, verdict))
    return verdict.exit_code


def _plan(options: argparse.Namespace) -> int:
    gc.disable()  # to look for garbage in all that is imported takes a tenth of the time, and finds none
    try:
        return _write_plan(options)
    finally:
        gc.enable()


def _write_plan(options: argparse.Namespace) -> int:
    from llm_pipeline.planning.plan import format_plan, plan_release

    plan = plan_release(
        options.config, store_seconds=options.store_seconds, predict=options.predict, replace=options.replace
    )
    document, text = plan.model_dump_json(indent=1) + "\n", format_plan(plan)
    if options.output:
        write_files(options.output, {"plan.json": document, "plan.txt": text})
    sys.stdout.write(document if options.json else text)
    return ExitCode.GO


def _stage_run(options: argparse.Namespace) -> int:
    from llm_pipeline.release.process import run_stage_process

    return run_stage_process(options.name, options.request, options.result, options.log)


def _report(options: argparse.Namespace) -> int:
    from llm_pipeline.flow import Flow
    from llm_pipeline.release.contract import StageFailure
    from llm_pipeline.release.execute import execute
    from llm_pipeline.store import open_store
    from llm_pipeline.store.references import release_of, resolve_reference

    deployment = deployment_of(options)
    release_id = release_of(resolve_reference(open_store(deployment.store), options.reference))
    outcome = execute(Flow.open(deployment, release_id).request("report"))
    if isinstance(outcome, StageFailure):
        raise from_document(outcome.error)
    sys.stdout.write(f"{outcome.metrics['report']}\n")
    return ExitCode.GO
