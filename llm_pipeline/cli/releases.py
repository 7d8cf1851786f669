"""Commands about one release: `init`, `plan`, `run`, `report`, `push`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from llm_pipeline.base.collector import sparing
from llm_pipeline.base.errors import ConfigError, ExitCode
from llm_pipeline.cli.options import Commands, add_command, deployment_of, open_flow, write_files, write_lines, writing

if TYPE_CHECKING:
    from llm_pipeline.config.overrides import Overrides

_REPLACE = "take the release's places over from the models that hold them; their users get this one once it is promoted"


def add_commands(commands: Commands) -> None:
    """Add them to the parser."""
    _add_initializing(commands)
    run = add_command(commands, "run", _run, "run a release on this machine, without Airflow", deployment=False)
    run.add_argument("config", type=Path, help="a release config, e.g. releases/first.yaml")
    _add_overrides(run)
    answer = run.add_mutually_exclusive_group()
    answer.add_argument(
        "--approve", action="store_const", const=True, dest="answer", help="approve production and its canary now"
    )
    answer.add_argument("--reject", action="store_const", const=False, dest="answer", help="answer no to all questions")
    run.add_argument("--approve-budget", action="store_true", help="go on if the plan exceeds the budget")
    run.add_argument("--approve-license", action="store_true", help="go on if the model's licence has changed")
    run.add_argument("--replace", action="store_true", help=_REPLACE)
    run.add_argument("--verbose", action="store_true", help="show every log line of every stage")

    plan = add_command(commands, "plan", _plan, "check a release without spending anything", deployment=False)
    plan.add_argument("config", type=Path, help="a release config, e.g. releases/first.yaml")
    _add_overrides(plan)
    plan.add_argument("--replace", action="store_true", help=_REPLACE)
    plan.add_argument("--json", action="store_true", help="print the plan as JSON")
    plan.add_argument("--output", type=Path, metavar="DIR", help="write plan.json and plan.txt there, too")

    report = add_command(commands, "report", _report, "write a release's report again and print its path")
    report.add_argument(
        "reference", metavar="REF", help="a release (or the beginning of its id), production:org/model/target"
    )

    summary = "push the checkpoint of a release that passed its gates to a hub, with its model card; safe to repeat"
    push = add_command(commands, "push", _push, summary)
    push.add_argument("reference", metavar="REF", help="a release, or production:org/model/target")
    push.add_argument(
        "--repository", default="", metavar="ORG/NAME",
        help="where to; created where there is none (default: MODEL-RECIPE of the token's own account)",
    )  # fmt: skip
    push.add_argument("--target", default="", help="the target whose choice is meant, where targets chose differently")
    push.add_argument("--private", action="store_true", help="create it as a private one; refuse a public one")
    push.add_argument("--dry-run", action="store_true", help="only show the files and the card")


def _add_overrides(parser: argparse.ArgumentParser) -> None:
    """What one run has otherwise than the config says: as the form of the release's DAG has it."""
    parser.add_argument("--revision", help="branch, tag or commit instead of the config's")
    for what in ("recipe", "target"):
        help_text = f"only this {what} of the config's; give it again for another one"
        parser.add_argument(f"--{what}", action="append", dest=f"{what}s", metavar="NAME", help=help_text)
    parser.add_argument("--strategy", choices=("climb", "every"), help="the ladder's instead of the config's")
    parser.add_argument("--budget-hours", type=float, metavar="HOURS", help="ask a person if the plan takes longer")
    parser.add_argument("--budget-cost", type=float, metavar="MONEY", help="ask a person if the plan costs more")


def _overrides(options: argparse.Namespace) -> Overrides:
    from llm_pipeline.config.overrides import Overrides

    return Overrides.of(vars(options))


def _run(options: argparse.Namespace) -> int:
    from llm_pipeline.local_run import Approve, LocalRun, ask_on_terminal
    from llm_pipeline.operations.status import last_words

    def ask(answer: bool | None) -> Approve:
        return ask_on_terminal if answer is None else lambda _question: answer

    otherwise = False if options.answer is False else None
    also = {"plan": options.approve_budget, "review_license": options.approve_license}
    if options.answer is False and any(also.values()):
        raise ConfigError("--reject answers no to all questions", hint="leave it out, or the options that say yes")
    apart = {step: ask(True if yes else otherwise) for step, yes in also.items()}
    release = LocalRun(
        options.config, approve=ask(options.answer), apart=apart, overrides=_overrides(options), replace=options.replace
    )
    verdict = release.run()
    if release.flow is not None:
        write_lines(last_words(release.flow, verdict))
    return verdict.exit_code


@sparing()  # to look for garbage in all that is imported takes a tenth of the time, and finds none
def _plan(options: argparse.Namespace) -> int:
    from llm_pipeline.planning.plan import format_plan, plan_release

    plan = plan_release(options.config, overrides=_overrides(options), replace=options.replace)
    document, text = plan.model_dump_json(indent=1) + "\n", format_plan(plan)
    if options.output:
        write_files(options.output, {"plan.json": document, "plan.txt": text})
    sys.stdout.write(document if options.json else text)
    return ExitCode.GO


def _report(options: argparse.Namespace) -> int:
    from llm_pipeline.release.contract import result_of
    from llm_pipeline.release.execute import execute

    result = result_of(execute(open_flow(options, options.reference).request("report")))
    sys.stdout.write(f"{result.metrics['report']}\n")
    return ExitCode.GO


def _push(options: argparse.Namespace) -> int:
    from llm_pipeline.operations.push import prepare, send

    deployment = deployment_of(options)
    push = prepare(open_flow(options, options.reference), deployment, options.repository, options.target)
    write_lines(push.lines())
    if options.dry_run:
        write_lines(f"  {file.sha256}  {file.size:>15,}  {file.path}" for file in push.files)
        write_lines(["", *push.card.splitlines()])
        return ExitCode.GO
    pushed = send(deployment, push, private=options.private)
    done = "pushed and verified" if pushed.made else "it was there, and is the same"
    write_lines([f"{done}: {pushed.url} at commit {pushed.commit}"])
    return ExitCode.GO


_SIBLING = Path(sys.prefix).parent
"""Where `docker/environments.py` puts the other environments beside this one."""


def _add_initializing(commands: Commands) -> None:
    summary = "write a project: a release of your model, and everything it names"
    init = add_command(commands, "init", _init, summary, deployment=False)
    init.add_argument("directory", type=Path, metavar="DIR", help="a new or empty directory")
    init.add_argument("--model", required=True, help="a directory with the model, or its id on the hub")
    init.add_argument("--name", default="first", help="of the release config (default: first)")
    init.add_argument(
        "--model-python", type=Path, default=_SIBLING / "model" / "bin" / "python", metavar="PYTHON",
        help="interpreter with torch, modelopt, lm-eval and OpenVINO (default: %(default)s)",
    )  # fmt: skip
    init.add_argument(
        "--triton-home", type=Path, default=_SIBLING / "triton", metavar="DIR",
        help="directory with tritonserver's binaries (default: %(default)s)",
    )  # fmt: skip
    init.add_argument("--example", action="store_true", help="the demo's tasks and prompts, which need no network")


def _init(options: argparse.Namespace) -> int:
    from llm_pipeline.project.writing import Choices, write_project

    choices = Choices(options.name, options.model, options.model_python, options.triton_home, example=options.example)
    with writing(options.directory):
        written = write_project(options.directory, choices)
    root, release = options.directory.resolve(), written[0].relative_to(options.directory)
    elsewhere = [] if root == Path.cwd() else [f"  cd {shlex.quote(str(options.directory))}"]
    write_lines(
        [
            "Look at these files; their comments say what to change:",
            *(f"  {path}" for path in written),
            "",
            "Then:",
            *elsewhere,
            f"  llm-pipeline doctor {release}",
            f"  llm-pipeline plan {release}",
            f"  llm-pipeline run {release} --approve",
            "",
            "In Airflow, set its DAGs folder, or make the project a DAG bundle:",
            f"  AIRFLOW__CORE__DAGS_FOLDER={shlex.quote(str(root / 'dags'))}",
        ]
    )
    return ExitCode.GO
