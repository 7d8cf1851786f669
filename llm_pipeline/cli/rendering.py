"""The command that shows what targets give TensorRT-LLM's LLM API: `render-args`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from llm_pipeline.base.errors import ExitCode
from llm_pipeline.base.untrusted_text import one_line
from llm_pipeline.cli.deployment_option import Commands
from llm_pipeline.cli.texts import sentence


def add_commands(commands: Commands) -> None:
    """Add it to the parser."""
    summary = "render targets' LLM args and check them against the recorded schema of their version"
    rendering = commands.add_parser(
        "render-args",
        help=summary,
        description=f"{sentence(summary)} YAML on stdout, warnings on stderr.",
        epilog="Exit code 1 if a version refuses what is rendered for it.",
    )
    rendering.add_argument("targets", type=Path, nargs="+", metavar="TARGET", help="file of a target")
    rendering.add_argument("--checkpoint", type=Path, metavar="DIR", help="for the type of its KV cache")
    rendering.set_defaults(run=_render)


def _render(options: argparse.Namespace) -> int:
    from llm_pipeline.config.loading import load_yaml
    from llm_pipeline.config.target import Target
    from llm_pipeline.engines.llm_args.checking import check_llm_args
    from llm_pipeline.engines.llm_args.rendering import render_llm_args

    refused = False
    for path in options.targets:
        target = load_yaml(path, Target, name=path.stem)
        arguments = render_llm_args(target, model="checkpoint", checkpoint=options.checkpoint)
        sys.stdout.write(f"--- # {target.name}, TensorRT-LLM {arguments.version}\n{arguments.to_yaml()}")
        check = check_llm_args(arguments.document, arguments.version)
        sys.stderr.writelines(f"{target.name}: error: {one_line(str(problem))}\n" for problem in check.errors)
        sys.stderr.writelines(f"{target.name}: warning: {one_line(str(problem))}\n" for problem in check.warnings)
        refused = refused or bool(check.errors)
    return ExitCode.NO_GO if refused else ExitCode.GO
