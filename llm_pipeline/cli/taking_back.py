"""The command for whoever sees that a release is wrong: `take-back`."""

from __future__ import annotations

import argparse
import getpass
import socket
import sys

from llm_pipeline.cli.deployment_option import Commands, add_deployment_option, deployment_of
from llm_pipeline.errors import ExitCode


def add_commands(commands: Commands) -> None:
    """Add it to the parser."""
    parser = commands.add_parser("take-back", help="take a canary or production back; asked twice, done once")
    parser.add_argument("model_id", metavar="model", help="organisation/name")
    parser.add_argument("gpu_target", metavar="target", help="the target's name, e.g. cpu")
    parser.add_argument("--production", action="store_true", help="production too, to the release before it")
    parser.add_argument("--leaving", default="", metavar="RELEASE", help="only if this release serves production now")
    parser.add_argument("--reason", default="", help="for the canary's events and the store")
    parser.add_argument("--by", default="", help="who asks for it (default: you)")
    add_deployment_option(parser)
    parser.set_defaults(run=_take_back)


def _take_back(options: argparse.Namespace) -> int:
    from llm_pipeline.canary.way_back import take_back_canary, take_back_production
    from llm_pipeline.notifications.channels import secrets_here
    from llm_pipeline.notifications.outbox import notify_of_targets
    from llm_pipeline.store import open_store
    from llm_pipeline.store.places import refuse_stranger
    from llm_pipeline.store.pointers import read_pointers

    deployment = deployment_of(options)
    store, target = open_store(deployment.store), options.gpu_target
    refuse_stranger(store, target, options.model_id)
    by = options.by or f"{getpass.getuser()}@{socket.gethostname()}"
    by = f"{by}: {options.reason}" if options.reason else by
    if options.production:
        take_back_production(store, deployment, options.model_id, target, by=by, leaving=options.leaving)
    else:
        take_back_canary(store, deployment, target, by=by)
    notify_of_targets(store, deployment, secrets_here(deployment.notifications), [target])
    production = read_pointers(store, options.model_id, target)[0].production
    serving = f"{production.release_id} serves in {production.slot}" if production else "nothing serves"
    sys.stdout.write(f"{options.model_id} on {target}: {serving}\n")
    return ExitCode.GO
