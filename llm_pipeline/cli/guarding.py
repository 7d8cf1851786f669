"""Commands for canaries that wait or are left alone: `approve-step` answers one, `guard` looks after all."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from llm_pipeline.base.errors import ConfigError, ExitCode
from llm_pipeline.cli.deployment_option import Commands, add_deployment_option, deployment_of
from llm_pipeline.cli.texts import write_lines

if TYPE_CHECKING:
    from llm_pipeline.config.deployment import Deployment


def add_commands(commands: Commands) -> None:
    """Add them to the parser."""
    approve = commands.add_parser("approve-step", help="let a canary step begin, or a paused canary continue")
    approve.add_argument("release_id", metavar="release", help="the release's id, or the beginning of it")
    approve.add_argument(
        "gpu_target",
        metavar="target",
        help="name of the place: its target's (e.g. cpu), unless the release config names another",
    )
    approve.add_argument("percent", type=float, help="the step, e.g. 25")
    approve.add_argument("--deny", action="store_true", help="roll the canary back instead")
    add_deployment_option(approve)
    approve.set_defaults(run=_approve)

    guard = commands.add_parser(
        "guard",
        help="one pass of the watchdog: roll back canaries whose controller is gone, on the host of their servers",
    )
    guard.add_argument("--target", dest="gpu_target", metavar="NAME", help="only this one of the deployment's targets")
    add_deployment_option(guard)
    guard.set_defaults(run=_guard)


def _approve(options: argparse.Namespace) -> int:
    from llm_pipeline.operations.approval import answer
    from llm_pipeline.store import open_store
    from llm_pipeline.store.provenance import user_here
    from llm_pipeline.store.references import release_of, resolve_reference

    deployment = deployment_of(options)
    store = open_store(deployment.store)
    release_id = release_of(resolve_reference(store, options.release_id))
    approved, by = not options.deny, user_here()
    answered = answer(store, release_id, options.gpu_target, options.percent, approved=approved, by=by)
    write_lines([answered.message])
    if answered.counted and options.deny:
        sys.stdout.write("the canary's controller or the guard rolls it back; `llm-pipeline guard` does it now\n")
    return ExitCode.GO if answered.counted else ExitCode.INCONCLUSIVE


def _guard(options: argparse.Namespace) -> int:
    from llm_pipeline.notifications.channel import no_connections
    from llm_pipeline.notifications.outbox import notify_of_targets
    from llm_pipeline.operations.guard import guard_once
    from llm_pipeline.operations.place_status import named_deployment
    from llm_pipeline.operations.status import deployment_status
    from llm_pipeline.store import open_store

    deployment = _guarded(deployment_of(options), options.gpu_target)
    store = open_store(deployment.store)
    write_lines([f"{named_deployment(deployment.name, store.uri)}, places {', '.join(deployment.places) or 'none'}"])
    actions = guard_once(store, deployment)
    notify_of_targets(store, deployment, no_connections)
    for action in actions:
        write_lines([f"{action.gpu_target}  {action.release_id}  {action.what}: {action.detail}"])
    if not actions:
        sys.stdout.write("nothing to do\n")
    dead = list(deployment_status(store, deployment).dead())
    write_lines(dead)
    return ExitCode.INFRASTRUCTURE if dead or any(action.what == "failed" for action in actions) else ExitCode.GO


def _guarded(deployment: Deployment, target: str | None) -> Deployment:
    """The deployment with the places to be guarded."""
    if target is None:
        return deployment
    if target not in deployment.places:
        raise ConfigError(f"deployment {deployment.name} has no place for {target!r}", where=deployment.name)
    return deployment.model_copy(update={"places": {target: deployment.places[target]}})
