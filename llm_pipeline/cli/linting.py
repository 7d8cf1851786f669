"""The command that looks at a model repository of any make: `lint-repo`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from llm_pipeline.base.errors import ExitCode
from llm_pipeline.cli.deployment_option import Commands
from llm_pipeline.cli.texts import sentence, write_lines


def add_commands(commands: Commands) -> None:
    """Add it to the parser."""
    summary = "find mistakes in a Triton model repository, without a server"
    linting = commands.add_parser(
        "lint-repo",
        help=summary,
        description=sentence(summary),
        epilog="Exit code 1 if there is an error; warnings alone are 0, or 1 with --strict.",
    )
    linting.add_argument("directory", type=Path, metavar="DIR", help="the repository: a directory of models")
    linting.add_argument("--strict", action="store_true", help="warnings count, too")
    linting.add_argument("--json", action="store_true", help="print JSON")
    linting.set_defaults(run=_lint)


def _lint(options: argparse.Namespace) -> int:
    from llm_pipeline.serving.lint import lint_repository_directory

    findings = lint_repository_directory(options.directory)
    errors = sum(finding.severity == "error" for finding in findings)
    if options.json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings], indent=1) + "\n")
    else:
        write_lines(map(str, findings))
        sys.stdout.write(f"{errors} errors, {len(findings) - errors} warnings\n")
    return ExitCode.NO_GO if errors or (options.strict and findings) else ExitCode.GO
