"""The command line: `llm-pipeline COMMAND`.

| | |
|---|---|
| `init`, `plan`, `run`, `report`, `push`, `stage` | a release (`releases`) |
| `tune` | settings of a target that hold more traffic (`tune`) |
| `formats` | what runs on which GPU, without a release (`formats`) |
| `ls`, `show`, `verify`, `diff`, `claims`, `gc` | what a deployment's store holds (`store`) |
| `status`, `start`, `stop`, `rollback`, `guard` | what serves users (`production`) |
| `approve`, `approve-step`, `pause`, `resume` | what a person decides of a release on its way (`production`) |
| `events` | what happened to releases (`events`) |
| `doctor` | what this host has of what a deployment asks for (`doctor`) |
| `lint-repo`, `render-args`, `render`, `pod` | model repositories, LLM args, Kubernetes manifests (`serving`) |
| `runbook`, `schema`, `completion` | what errors mean; what editors and shells complete from (`editing`) |

Exit codes: 0 GO, 1 NO_GO, 2 INCONCLUSIVE, 3 ANOMALOUS, 4 bad input (wrong arguments, too), 5 infrastructure (or
something is damaged, or a fault of this program); 130 and 143 after Ctrl-C and SIGTERM. `entry` keeps them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

from llm_pipeline import __version__
from llm_pipeline.base.entry import ArgumentParser, entry_point, interruptible
from llm_pipeline.base.logging import write_readable_lines
from llm_pipeline.cli import doctor, editing, events, formats, production, releases, serving, store, tune


@entry_point
def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    _log_for_people()
    parser = _parser()
    editing.complete(parser)
    options = parser.parse_args(arguments)
    if getattr(options, "verbose", False):
        logging.getLogger("llm_pipeline.stage").setLevel(logging.INFO)
    with contextlib.nullcontext() if options.command == "stage" else interruptible():  # a stage says how it ended
        code: int = options.run(options)
    return code


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="llm-pipeline", description="Release language models, with recorded evidence at every gate."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for group in (releases, tune, formats, store, production, events, doctor, serving, editing):
        group.add_commands(commands)
    return parser


def _log_for_people() -> None:
    write_readable_lines()
    logging.getLogger("llm_pipeline.stage").setLevel(logging.WARNING)
    logging.getLogger("llm_pipeline.stage.download").setLevel(logging.INFO)  # it may take an hour
