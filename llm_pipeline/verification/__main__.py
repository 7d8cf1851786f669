"""The command line: `prepare` in the model image, `check` in the serving image."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from llm_pipeline.artifacts.host_facts import read_host_facts
from llm_pipeline.base.entry import ArgumentParser, entry_point
from llm_pipeline.base.errors import ExitCode
from llm_pipeline.base.logging import write_readable_lines
from llm_pipeline.verification.bench import Bench, Prepared, versions
from llm_pipeline.verification.installed import ask_installed
from llm_pipeline.verification.report import Report, table
from llm_pipeline.verification.steps import run_steps


@entry_point
def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the two commands; 0 when no step failed."""
    options = _parse(arguments)
    write_readable_lines()
    code: int = options.run(options)
    return code


def _prepare(options: argparse.Namespace) -> int:
    from llm_pipeline.verification.preparation import prepare

    prepared = prepare(options.output, options.model, options.revision)
    for one in prepared.checkpoints:
        sys.stdout.write(f"{one.name}: {one.refused or 'made'}\n")
    return ExitCode.GO


def _check(options: argparse.Namespace) -> int:
    output: Path = options.output
    output.mkdir(parents=True, exist_ok=True)
    host, runtime = read_host_facts(), ask_installed(output / "installed.json")
    bench = Bench(
        source=options.prepared,
        prepared=Prepared.read(options.prepared),
        output=output,
        host=host,
        runtime=runtime,
        image=options.image,
        triton_home=options.triton_home,
        python=options.python,
    )
    facts = {
        "container": host.container or options.image or "none",
        "gpus": ", ".join(f"{gpu.name} ({gpu.sm})" for gpu in host.gpus),
        "driver": host.driver,
        "model": bench.prepared.model,
        **versions(runtime),
    }
    report = Report(facts=facts, rows=run_steps(bench, options.only))
    (output / "verification.json").write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")
    (output / "verification.txt").write_text(table(report), encoding="utf-8")
    sys.stdout.write(table(report))
    return ExitCode.NO_GO if report.failed else ExitCode.GO


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = ArgumentParser(prog="python -m llm_pipeline.verification", description="See docs/verification.md.")
    commands = parser.add_subparsers(required=True)
    making = commands.add_parser("prepare", help="make checkpoints and golden prompts, in the model image")
    making.add_argument("--output", type=Path, required=True, help="directory to make")
    making.add_argument("--model", help="a model of the hub; without it the demo model is trained")
    making.add_argument("--revision", default="main", help="branch, tag or commit of the model")
    making.set_defaults(run=_prepare)
    checking = commands.add_parser("check", help="run the steps, in the serving image on a GPU host")
    checking.add_argument("--prepared", type=Path, required=True, help="what `prepare` made")
    checking.add_argument("--output", type=Path, required=True, help="directory for results")
    checking.add_argument("--image", default="", help="the base image, as the table of containers names it")
    checking.add_argument("--triton-home", type=Path, default=Path("/opt/tritonserver"), help="where Triton is")
    checking.add_argument("--python", type=Path, default=Path(sys.executable), help="interpreter of the models' code")
    checking.add_argument("--only", nargs="+", default=[], metavar="STEP", help="these steps and no others")
    checking.set_defaults(run=_check)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
