"""Commands for those who write: `schema` for editors, `completion` for shells."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from llm_pipeline.base.errors import ConfigError, ExitCode
from llm_pipeline.cli.options import Commands, add_command, write_files, write_json, write_lines

_ASKED_BY_A_SHELL = "_ARGCOMPLETE"
SHELLS = ("bash", "zsh", "fish")
FOLDERS = ("releases", "targets", "quantization", "policies", "deployments")


def add_commands(commands: Commands) -> None:
    """Add them to the parser."""
    summary = "JSON schemas of configuration files, from which editors complete"
    schema = add_command(commands, "schema", _schema, summary, deployment=False)
    schema.add_argument("folder", nargs="?", choices=FOLDERS, help="print the schema of this folder's files")
    schema.add_argument("--output", type=Path, metavar="DIR", help="write the schemas of all folders there")

    summary = "what a shell runs to complete commands and options"
    completion = add_command(commands, "completion", _completion, summary, deployment=False)
    completion.add_argument("shell", choices=SHELLS)


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks how a line may go on, and end; return at once otherwise."""
    if _ASKED_BY_A_SHELL in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)


def _schema(options: argparse.Namespace) -> int:
    from llm_pipeline.config.reference import json_schema, json_schemas

    if options.output:
        texts = {f"{folder}.json": json.dumps(made, indent=1) + "\n" for folder, made in json_schemas().items()}
        write_files(options.output, texts)
        write_lines(str(options.output / name) for name in texts)
    elif options.folder:
        write_json(json_schema(options.folder))
    else:
        raise ConfigError("which schema?", hint=f"name one of {', '.join(FOLDERS)}, or give --output DIR for all")
    return ExitCode.GO


def _completion(options: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode(["llm-pipeline"], shell=options.shell))
    return ExitCode.GO
