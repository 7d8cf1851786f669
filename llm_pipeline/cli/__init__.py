"""The command line: `llm-pipeline COMMAND`.

| | |
|---|---|
| `init`, `plan`, `run`, `report`, `push` | a release (`releases`) |
| `ls`, `show`, `verify`, `diff`, `claims`, `gc` | what a deployment's store holds (`store`) |
| `status`, `start`, `stop`, `rollback`, `guard` | what serves users (`production`) |
| `approve`, `approve-step`, `pause`, `resume` | what a person decides of a release on its way (`production`) |
| `doctor` | what this host has of what a deployment asks for (`production`) |
| `render`, `pod` | Kubernetes manifests (`serving`) |
| `runbook`, `schema`, `completion` | what errors mean; what editors and shells complete from (`editing`) |

Exit codes: 0 GO, 1 NO_GO, 2 INCONCLUSIVE, 3 ANOMALOUS, 4 bad input (wrong arguments, too), 5 infrastructure (or
something is damaged, or a fault of this program); 130 and 143 after Ctrl-C and SIGTERM. `entry` keeps them.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from llm_pipeline import __version__
from llm_pipeline.base.entry import ArgumentParser, entry_point, interruptible
from llm_pipeline.base.errors import ExitCode
from llm_pipeline.base.logging import FAILURES, write_readable_lines

_MAY_BE_EMPTY = "--reason"


@entry_point
def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    _log_for_people()
    given = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    if not given:
        parser.print_help(sys.stderr)
        return ExitCode.BAD_INPUT
    _refuse_empty(parser, given)
    options = parser.parse_args(given)
    if getattr(options, "verbose", False):
        logging.getLogger("llm_pipeline.stage").setLevel(logging.INFO)
    with interruptible():
        code: int = options.run(options)
    return code


def _refuse_empty(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    """`stop "$PLACE"` without that variable must not stop every place, nor `--release=` mean any release.

    Raises:
        SystemExit: An argument is empty, and is no text that may be.
    """
    for before, argument in pairwise(("", *arguments)):
        name, given, value = argument.partition("=")
        is_option = argument.startswith("--")
        empty = bool(given) and not value.strip() if is_option else not argument.strip()
        if empty and _MAY_BE_EMPTY not in (before, name):
            parser.error("an argument is empty: is a variable of the shell not set?")


def _parser() -> ArgumentParser:
    from llm_pipeline.cli import editing, production, releases, serving, store

    tasks = {
        "Releases": (releases,),
        "The store": (store,),
        "Production": (production,),
        "Servers": (serving,),
        "Reading and editing": (editing,),
    }
    parser = ArgumentParser(
        prog="llm-pipeline",
        usage="llm-pipeline COMMAND ...\n       llm-pipeline COMMAND --help",
        description="Release language models, with recorded evidence at every gate.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", prog="llm-pipeline", help=argparse.SUPPRESS
    )
    listed = commands._choices_actions  # noqa: SLF001 - argparse lists commands in one row; ours are told by task
    parts = []
    for task, modules in tasks.items():
        before = len(listed)
        for module in modules:
            module.add_commands(commands)
        parts.append("\n".join([f"{task}:", *_command_lines(listed[before:])]))
    parser.epilog = "\n\n".join(parts)
    editing.complete(parser)
    return parser


def _command_lines(listed: Iterable[argparse.Action]) -> Iterator[str]:
    """A line for each command, or more where the terminal is narrow."""
    import shutil
    import textwrap

    width = max(shutil.get_terminal_size().columns - 2, 40)
    for one in listed:
        yield from textwrap.wrap(one.help or "", width, initial_indent=f"  {one.dest:<13}", subsequent_indent=" " * 15)


def _log_for_people() -> None:
    shown = logging.StreamHandler(sys.stderr)
    shown.addFilter(lambda record: record.name != FAILURES)  # the error that ends the command is shown
    write_readable_lines(shown)
    logging.getLogger("llm_pipeline.stage").setLevel(logging.WARNING)
    logging.getLogger("llm_pipeline.stage.download").setLevel(logging.INFO)  # it may take an hour
