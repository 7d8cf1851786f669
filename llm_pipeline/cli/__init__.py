"""The command line: `llm-pipeline COMMAND`.

| | |
|---|---|
| `plan`, `run`, `report`, `rollback` | a release (`releasing`) |
| `ls`, `show`, `verify`, `diff` | what a deployment's store holds (`inspecting`) |
| `claims` | which release of each model is on its way (`claiming`) |
| `approve-step`, `guard` | canaries that wait, or that nobody watches (`guarding`) |
| `take-back` | a canary or production, on a person's word (`taking_back`) |
| `gc` | what it need not hold any more (`retaining`) |
| `tune` | settings of a target that hold more traffic (`tuning`) |
| `formats` | what runs on which GPU, without a release (`formats`) |
| `doctor` | what this host has of what a deployment asks for (`diagnosing`) |
| `lint-repo` | any Triton model repository (`linting`) |
| `render-args` | what targets give TensorRT-LLM's LLM API (`rendering`) |
| `render` | a release's launch plan and Kubernetes manifests (`manifests`) |
| `stage`, `pod` | for the runners, and for serving pods (`pods`) |

Exit codes: 0 GO, 1 NO_GO, 2 INCONCLUSIVE, 3 ANOMALOUS, 4 bad input, 5 infrastructure (or something is damaged).
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from llm_pipeline import __version__
from llm_pipeline.cli import (
    claiming,
    diagnosing,
    formats,
    guarding,
    inspecting,
    linting,
    manifests,
    pods,
    releasing,
    rendering,
    retaining,
    taking_back,
    tuning,
)
from llm_pipeline.errors import PipelineError
from llm_pipeline.logging import ReadableFormatter

_INTERRUPTED = 130
_CLOSED_PIPE = 141  # as a shell says of a program whose reader went away


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    options = _parser().parse_args(arguments)
    if options.command != "stage":
        _log_for_people(verbose=getattr(options, "verbose", False))
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except PipelineError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: what was running was stopped; the same command goes on from here\n")
        return _INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # Python would complain there when it flushes stdout
        return _CLOSED_PIPE
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="llm-pipeline", description="Releases of language models, with evidence.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    groups = (
        releasing,
        tuning,
        formats,
        inspecting,
        claiming,
        guarding,
        taking_back,
        retaining,
        diagnosing,
        linting,
        rendering,
        manifests,
        pods,
    )
    for group in groups:
        group.add_commands(commands)
    return parser


def _log_for_people(*, verbose: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ReadableFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("llm_pipeline").setLevel(logging.INFO)
    logging.getLogger("llm_pipeline.stage").setLevel(logging.INFO if verbose else logging.WARNING)
    logging.getLogger("llm_pipeline.stage.download").setLevel(logging.INFO)  # it may take an hour
