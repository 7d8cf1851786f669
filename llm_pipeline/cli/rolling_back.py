"""The command for whoever sees that a release is wrong: `rollback`."""

from __future__ import annotations

import argparse
import sys

from llm_pipeline.base.errors import ExitCode
from llm_pipeline.cli.deployment_option import Commands, add_deployment_option, deployment_of


def add_commands(commands: Commands) -> None:
    """Add it to the parser."""
    parser = commands.add_parser(
        "rollback",
        help="roll back a release on trial or in production; safe to repeat",
        description="Leave a release and bring back the one that served before it. What was taken back is never gone "
        "back to: only another release of it brings it into production again.",
    )
    parser.add_argument("model_id", metavar="model", help="organisation/name")
    parser.add_argument(
        "gpu_target",
        metavar="target",
        help="name of the place: its target's (e.g. cpu), unless the release config names another",
    )
    parser.add_argument(
        "--from",
        dest="leaving",
        default="",
        metavar="RELEASE",
        help="the release to leave, or the beginning of its id (default: what is on trial, or else what serves, unless "
        "it serves because another release was taken back)",
    )
    parser.add_argument("--reason", default="", help="recorded with the rollback")
    parser.add_argument("--by", default="", help="who requests it (default: you)")
    add_deployment_option(parser)
    parser.set_defaults(run=_roll_back)


def _roll_back(options: argparse.Namespace) -> int:
    from llm_pipeline.notifications.channel import no_connections
    from llm_pipeline.notifications.outbox import notify_of_targets
    from llm_pipeline.operations.served_place import roll_back_at
    from llm_pipeline.store import open_store
    from llm_pipeline.store.provenance import user_here

    deployment = deployment_of(options)
    store, target = open_store(deployment.store), options.gpu_target
    by = options.by or user_here()
    by = f"{by}: {options.reason}" if options.reason else by
    production = roll_back_at(store, deployment, options.model_id, target, by=by, leaving=options.leaving).production
    notify_of_targets(store, deployment, no_connections, [target])
    serving = f"{production.release_id} serves in {production.slot}" if production else "nothing serves"
    sys.stdout.write(f"{options.model_id} on {target}: {serving}\n")
    return ExitCode.GO
