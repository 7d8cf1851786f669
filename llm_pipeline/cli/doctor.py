"""The command `doctor`: what this host has of what a deployment asks for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llm_pipeline.base.errors import ExitCode
from llm_pipeline.cli.options import Commands, add_command, deployment_of, write_json, write_lines

if TYPE_CHECKING:
    from llm_pipeline.operations.doctor import Check


def add_commands(commands: Commands) -> None:
    """Add it to the parser."""
    doctor = add_command(
        commands,
        "doctor",
        _doctor,
        "check this host: interpreters, containers, cluster, store, disk, ports, Triton, Airflow, GPUs, driver",
        description="Check this host by doing what stages do. Exit code 4 if a check failed.",
        json_too=True,
    )
    doctor.add_argument("config", type=Path, nargs="?", help="a release config, for its deployment and targets")


def _doctor(options: argparse.Namespace) -> int:
    from llm_pipeline.operations.doctor import examine
    from llm_pipeline.planning.task_pool import task_modules
    from llm_pipeline.release.loading import load_release

    if options.config:
        loaded = load_release(options.config)
        modules = task_modules(loaded.release.evaluation)
        checks = examine(loaded.deployment, loaded.release.targets, loaded.release.model.id, modules)
    else:
        checks = examine(deployment_of(options))
    if options.json:
        write_json([check.model_dump() for check in checks])
    else:
        write_lines(_lines(checks))
    return ExitCode.BAD_INPUT if any(check.state == "failed" for check in checks) else ExitCode.GO


def _lines(checks: Sequence[Check]) -> Iterator[str]:
    width = max(len(check.subject) for check in checks)
    for check in checks:
        advice = f" -> {check.fix}" if check.fix else ""
        yield f"{check.state:<8} {check.subject:<{width}}  {check.detail}{advice}"
