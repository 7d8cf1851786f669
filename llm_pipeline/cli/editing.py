"""Commands for those who read and write: `runbook`, `schema` for editors, `completion` for shells."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import posixpath
import re
import sys
from pathlib import Path

from llm_pipeline.base.errors import ConfigError, ExitCode, runbooks_file
from llm_pipeline.cli.options import Commands, add_command, write_files, write_json, write_lines

_ASKED_BY_A_SHELL = "_ARGCOMPLETE"
SHELLS = ("bash", "zsh", "fish")
FOLDERS = ("releases", "targets", "quantization", "policies", "deployments")
_COMPLETING = (
    'In ~/.bashrc or ~/.zshrc: eval "$(llm-pipeline completion bash)"; in fish: llm-pipeline completion fish | source.'
)
_LINK = re.compile(r"\[([^\]]+)\]\((\S+?\.md\S*|#\S+)\)")


def add_commands(commands: Commands) -> None:
    """Add them to the parser."""
    summary = "what configuration files may hold: JSON schemas, from which editors complete, or text"
    schema = add_command(commands, "schema", _schema, summary, deployment=False)
    schema.add_argument("folder", nargs="?", choices=FOLDERS, help="print the schema of this folder's files")
    how = schema.add_mutually_exclusive_group()
    how.add_argument("--output", type=Path, metavar="DIR", help="write the schemas of all folders there")
    how.add_argument("--text", action="store_true", help="print every field with its meaning, for people, as Markdown")

    summary = "what an error or a verdict means and what to do about it"
    runbook = add_command(commands, "runbook", _runbook, summary, deployment=False)
    name = runbook.add_argument(
        "name", nargs="?", default="", help="type of the error, or verdict; without it, the whole page"
    )
    name.completer = _completed  # type: ignore[attr-defined]  # what argcomplete asks for

    summary = "what a shell runs to complete commands and options"
    completion = add_command(commands, "completion", _completion, summary, deployment=False, epilog=_COMPLETING)
    completion.add_argument("shell", choices=SHELLS, help="the shell that is to complete")


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks how a line may go on, and end; return at once otherwise."""
    if _ASKED_BY_A_SHELL in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)


def _schema(options: argparse.Namespace) -> int:
    from llm_pipeline.config.reference import folder_reference, json_schema, json_schemas, reference

    if options.text:
        write_lines(folder_reference(options.folder) if options.folder else reference().splitlines())
    elif options.output:
        texts = {f"{folder}.json": json.dumps(made, indent=1) + "\n" for folder, made in json_schemas().items()}
        write_files(options.output, texts)
        write_lines(str(options.output / name) for name in texts)
    elif options.folder:
        write_json(json_schema(options.folder))
    else:
        hint = f"name one of {', '.join(FOLDERS)}, or give --output DIR for all, or --text"
        raise ConfigError("which schema?", hint=hint)
    return ExitCode.GO


def _runbook(options: argparse.Namespace) -> int:
    sections, name = _runbooks(), options.name.lower()
    if name and name not in sections:
        close = ", ".join(difflib.get_close_matches(name, sections, n=3)) or "leave the name out for the whole page"
        raise ConfigError(f"no runbook {options.name!r}", hint=close)
    text = sections[name] if name else runbooks_file().read_text(encoding="utf-8")
    write_lines(_LINK.sub(_told_as_a_place, text).rstrip().splitlines())
    return ExitCode.GO


def _runbooks() -> dict[str, str]:
    """The sections of the page of runbooks, by their names in small letters."""
    page = runbooks_file().read_text(encoding="utf-8")
    return {text.partition("\n")[0].lower(): text for text in re.split(r"^##+ ", page, flags=re.MULTILINE)[1:]}


def _completed(prefix: str, **_: object) -> list[str]:
    """Names that go on from what was typed, which may have an error's own capitals."""
    return [prefix + name[len(prefix) :] for name in _runbooks() if name.startswith(prefix.lower())]


def _told_as_a_place(link: re.Match[str]) -> str:
    """A link of the page as text: a terminal follows none."""
    text, target = link[1], link[2]
    if target.startswith("#"):
        return f"{text} (llm-pipeline runbook {target[1:]})"
    return f"{text} ({posixpath.normpath(f'docs/{target}')})"


def _completion(options: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode(["llm-pipeline"], shell=options.shell))
    return ExitCode.GO
