"""The command that removes what nobody needs any more: `gc`."""

from __future__ import annotations

import argparse
import json
import sys

from llm_pipeline.base.errors import ExitCode
from llm_pipeline.cli.deployment_option import Commands, add_deployment_option, deployment_of
from llm_pipeline.cli.texts import sentence, write_lines


def add_commands(commands: Commands) -> None:
    """Add it to the parser."""
    summary = "show what nobody needs any more, why, and its size; remove it only with --delete"
    collecting = commands.add_parser("gc", help=summary, description=sentence(summary))
    collecting.add_argument("--delete", action="store_true", help="really remove it")
    collecting.add_argument(
        "--force", action="store_true", help="also when that is most of the store (retention.max_deleted_share)"
    )
    collecting.add_argument("--json", action="store_true", help="print JSON")
    add_deployment_option(collecting)
    collecting.set_defaults(run=_gc)


def _gc(options: argparse.Namespace) -> int:
    from llm_pipeline.retention.collection import collect_garbage

    report = collect_garbage(deployment_of(options), delete=options.delete, force=options.force)
    if options.json:
        sys.stdout.write(json.dumps(report.model_dump(mode="json"), indent=1) + "\n")
    else:
        write_lines(report.lines())
    return ExitCode.GO
