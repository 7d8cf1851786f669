"""The command `formats`: what runs where, without a release."""

from __future__ import annotations

import argparse
import sys

from llm_pipeline.base.errors import ExitCode
from llm_pipeline.cli.options import Commands, add_command, sentence, write_json


def add_commands(commands: Commands) -> None:
    """Add it to the parser."""
    summary = "show which formats run on which GPU with which TensorRT-LLM, and why not"
    parser = add_command(
        commands,
        "formats",
        _formats,
        summary,
        description=f"{sentence(summary)} `plan` judges a release by the same rules.",
        epilog="Each option may be given several times. "
        "yes: known to run; partial; ?: not in any table, so plan warns; no: plan refuses.",
        deployment=False,
    )
    parser.add_argument("--gpu", action="append", default=[], help="a GPU's name in the catalog; all if not given")
    parser.add_argument(
        "--version", action="append", default=[], help="of TensorRT-LLM; those in known containers if not given"
    )
    kinds = ("tensorrt_llm_llmapi", "tensorrt_llm_engine")
    parser.add_argument("--engine", action="append", default=[], choices=kinds, help="how it is served (default: both)")
    parser.add_argument("--model", action="append", default=[], help="judge by NVIDIA's tables of models, too")
    parser.add_argument("--json", action="store_true", help="print every cell as JSON")


def _formats(options: argparse.Namespace) -> int:
    from llm_pipeline.planning.matrix import BACKENDS, Selection, format_matrix, judge_cells

    cells = judge_cells(
        Selection(
            accelerators=tuple(options.gpu),
            versions=tuple(options.version),
            engines=tuple(options.engine) or BACKENDS,
            models=tuple(options.model) or (None,),
        )
    )
    if options.json:
        write_json([cell.model_dump(mode="json") for cell in cells])
    else:
        sys.stdout.write(format_matrix(cells))
    return ExitCode.GO
