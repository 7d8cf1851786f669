"""Commands for those who read and write: `runbook`, `schema` for editors, `completion` for shells."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import sys
from pathlib import Path

from llm_pipeline.base.errors import ConfigError, ExitCode, runbooks_file
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

    summary = "what an error or a verdict means and what to do about it"
    runbook = add_command(commands, "runbook", _runbook, summary, deployment=False)
    runbook.add_argument(
        "name", nargs="?", default="", help="type of the error, or verdict; without it, the whole page"
    )

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


def _runbook(options: argparse.Namespace) -> int:
    page = runbooks_file().read_text(encoding="utf-8")
    sections = {text.partition("\n")[0].lower(): text for text in re.split(r"^##+ ", page, flags=re.MULTILINE)[1:]}
    name = options.name.lower()
    if name and name not in sections:
        close = ", ".join(difflib.get_close_matches(name, sections, n=3)) or "leave the name out for the whole page"
        raise ConfigError(f"no runbook {options.name!r}", hint=close)
    write_lines((sections[name] if name else page).rstrip().splitlines())
    return ExitCode.GO


def _completion(options: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode(["llm-pipeline"], shell=options.shell))
    return ExitCode.GO
