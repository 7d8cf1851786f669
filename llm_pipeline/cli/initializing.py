"""The command `init`: a project of one's own, ready for `plan`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from llm_pipeline.base.errors import ConfigError, ExitCode, unless_io
from llm_pipeline.cli.deployment_option import Commands
from llm_pipeline.cli.texts import sentence, write_lines

_SIBLING = Path(sys.prefix).parent
"""Where `docker/environments.py` puts the other environments beside this one."""


def add_commands(commands: Commands) -> None:
    """Add it to the parser."""
    summary = "write a project: a release of your model, and everything it names"
    init = commands.add_parser("init", help=summary, description=sentence(summary))
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
    init.set_defaults(run=_init)


def _init(options: argparse.Namespace) -> int:
    from llm_pipeline.project.writing import Choices, write_project

    choices = Choices(options.name, options.model, options.model_python, options.triton_home, example=options.example)
    try:
        written = write_project(options.directory, choices)
    except OSError as error:
        wrong = ConfigError(f"cannot be written: {error.strerror}", where=str(error.filename or options.directory))
        raise unless_io(error, wrong) from error
    root = options.directory.absolute()
    write_lines(
        [
            "Look at these files; their comments say what to change:",
            *(f"  {path}" for path in written),
            "",
            "Then:",
            f"  llm-pipeline plan {written[0]}",
            f"  llm-pipeline run {written[0]} --approve",
            "",
            "In Airflow, set these in its environment:",
            f"  LLM_PIPELINE_RELEASES={root / 'releases'}",
            f"  AIRFLOW__CORE__DAGS_FOLDER={root / 'dags'}",
        ]
    )
    return ExitCode.GO
