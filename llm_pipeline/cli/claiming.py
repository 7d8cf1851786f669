"""The command that shows which releases hold their models, and frees one by hand: `claims`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from llm_pipeline.base.errors import ExitCode
from llm_pipeline.cli.deployment_option import Commands, add_deployment_option, deployment_of
from llm_pipeline.cli.texts import write_lines

if TYPE_CHECKING:
    from llm_pipeline.release.claim_state import Claimant


def add_commands(commands: Commands) -> None:
    """Add it to the parser."""
    claims = commands.add_parser("claims", help="show which release of a model is running, and which ones wait")
    claims.add_argument("--free", metavar="MODEL", help="free the claim of a release that is dead")
    add_deployment_option(claims)
    claims.set_defaults(run=_claims)


def _claims(options: argparse.Namespace) -> int:
    from llm_pipeline.release.claim import free_claim, readable_claims
    from llm_pipeline.store import open_store

    store = open_store(deployment_of(options).store)
    if options.free:
        freed = free_claim(store, options.free)
        sys.stdout.write(f"{options.free}: " + (f"taken from {freed}\n" if freed else "no release held it\n"))
        return ExitCode.GO
    claims, damaged = readable_claims(store)
    for model_id, state in claims.items():
        if state.holder is not None:
            write_lines([f"{model_id}  running: {_line(state.holder)}"])
        for waiting in state.waiting:
            write_lines([f"{model_id}  waits: {_line(waiting)}"])
    for one in damaged:
        write_lines([f"DAMAGED  {one.name}: {one.error}"])
    return ExitCode.INFRASTRUCTURE if damaged else ExitCode.GO


def _line(claimant: Claimant) -> str:
    superseded = f", superseded by {claimant.superseded_by}" if claimant.superseded_by else ""
    return f"{claimant}, since {claimant.since:%Y-%m-%d %H:%M} UTC{superseded}"
