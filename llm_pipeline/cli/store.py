"""Commands for what a deployment's store holds: they look at it, free a claim, and remove what nobody needs."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from llm_pipeline.base.errors import ConfigError, ExitCode
from llm_pipeline.cli.options import Commands, add_command, deployment_of, opened, write_json, write_lines, write_view

if TYPE_CHECKING:
    from llm_pipeline.release.claim import Claimant


_KINDS = ("releases", "artifacts")
_REFERENCES = (
    "REF is a release (or the beginning of its id), an artifact (kind/digest or a digest, six digits at least), "
    "or a pointer (production:org/model/target, previous:org/model/target)."
)


def add_commands(commands: Commands) -> None:
    """Add them to the parser."""
    about: dict[str, Any] = {"epilog": _REFERENCES, "json_too": True}
    summary = "list what the store holds; exit code 5 if some of it is damaged"
    listing = add_command(commands, "ls", _ls, summary, **about)
    listing.add_argument("what", nargs="?", choices=_KINDS, default="releases", help="what to list (default: releases)")

    summary = "show everything known about a release or an artifact"
    showing = add_command(commands, "show", _show, summary, **about)
    showing.add_argument("reference", metavar="REF", help="what to show")

    summary = "read every byte and check every signature; exit code 5 if any differs"
    verifying = add_command(commands, "verify", _verify, summary, **about)
    verifying.add_argument(
        "reference", metavar="REF", nargs="?",
        help="without it, what serves here: artifacts, servers' answers, routers; exit code 1 if any differs",
    )  # fmt: skip
    verifying.add_argument("--place", metavar="PLACE", help="of what serves, only this place")

    comparing = add_command(commands, "diff", _diff, "show how two artifacts or releases differ", **about)
    comparing.add_argument("first", metavar="REF", help="what it was before")
    comparing.add_argument("second", metavar="REF", help="what it is now, of the same kind")

    claims = add_command(commands, "claims", _claims, "show which release of a model is running, and which ones wait")
    claims.add_argument("--free", metavar="MODEL", help="free the claim of a release that is dead")

    summary = "show what nobody needs any more, why, and its size; remove it only with --delete"
    collecting = add_command(commands, "gc", _gc, summary, json_too=True)
    collecting.add_argument("--delete", action="store_true", help="really remove it")


def _ls(options: argparse.Namespace) -> int:
    from llm_pipeline.inspection.listing import LISTINGS, is_damaged, table

    _, store = opened(options)
    rows = LISTINGS[options.what](store)
    if options.json:
        write_json([row.model_dump(mode="json") for row in rows])
    else:
        write_lines(table(rows) if rows else [f"no {options.what}"])
    return ExitCode.INFRASTRUCTURE if any(map(is_damaged, rows)) else ExitCode.GO


def _show(options: argparse.Namespace) -> int:
    from llm_pipeline.inspection.showing import show
    from llm_pipeline.store.references import resolve_reference

    _, store = opened(options)
    view = show(store, resolve_reference(store, options.reference))
    write_view(view, as_json=options.json)
    return ExitCode.INFRASTRUCTURE if view.damaged else ExitCode.GO


def _verify_served(options: argparse.Namespace) -> int:
    from llm_pipeline.notifications.telling import Origin, tell, verified
    from llm_pipeline.operations.verification import summary, verify_place

    (deployment, store), found, last = opened(options), [], []
    for place in [options.place] if options.place else deployment.places:
        checks = []
        for check in verify_place(store, deployment, place):
            checks.append(check)
            if not options.json:
                write_lines([str(check)])
        found += checks
        last.append(summary(place, checks))
        if wrong := [f"{check.what}: {check.problem}" for check in checks if check.problem]:
            tell(deployment, [verified(Origin(deployment.name, ""), place, "; ".join(wrong))])
    if options.json:
        write_json([check.model_dump(mode="json") for check in found])
    else:
        write_lines(last)
    return ExitCode.NO_GO if any(check.problem for check in found) else ExitCode.GO


def _verify(options: argparse.Namespace) -> int:
    if options.reference is None:
        return _verify_served(options)
    if options.place:
        raise ConfigError("--place is for what serves, and a reference is given", hint="leave one of them out")
    from llm_pipeline.inspection.verification import verify_reference
    from llm_pipeline.store.references import resolve_reference

    _, store = opened(options)
    verified = []
    for verification in verify_reference(store, resolve_reference(store, options.reference)):
        verified.append(verification)
        if not options.json:  # as it goes: reading every byte takes its time
            write_lines(verification.lines())
    damaged = sum(bool(verification.problems) for verification in verified)
    if options.json:
        write_json([verification.model_dump(mode="json") for verification in verified])
    else:
        read = sum(verification.artifact is not None for verification in verified)
        write_lines([f"{read} artifacts read, {damaged} damaged"])
    return ExitCode.INFRASTRUCTURE if damaged else ExitCode.GO


def _diff(options: argparse.Namespace) -> int:
    from llm_pipeline.inspection.comparison import compare
    from llm_pipeline.store.references import resolve_reference

    _, store = opened(options)
    comparison = compare(store, *(resolve_reference(store, name) for name in (options.first, options.second)))
    write_view(comparison, as_json=options.json)
    return ExitCode.GO


def _claims(options: argparse.Namespace) -> int:
    from llm_pipeline.release.claim import free_claim, readable_claims

    _, store = opened(options)
    if options.free:
        freed = free_claim(store, options.free)
        sys.stdout.write(f"{options.free}: " + (f"taken from {freed}\n" if freed else "no release held it\n"))
        return ExitCode.GO
    claims, damaged = readable_claims(store)
    lines = []
    for model_id, state in claims.items():
        if state.holder is not None:
            lines.append(f"{model_id}  running: {_line(state.holder)}")
        lines += [f"{model_id}  waits: {_line(waiting)}" for waiting in state.waiting]
    lines += map(str, damaged)
    write_lines(lines or ["no release is running, and none waits"])
    return ExitCode.INFRASTRUCTURE if damaged else ExitCode.GO


def _line(claimant: Claimant) -> str:
    return f"{claimant}, since {claimant.since:%Y-%m-%d %H:%M} UTC"


def _gc(options: argparse.Namespace) -> int:
    from llm_pipeline.retention import collect_garbage

    report = collect_garbage(deployment_of(options), delete=options.delete)
    write_view(report, as_json=options.json)
    return ExitCode.GO
