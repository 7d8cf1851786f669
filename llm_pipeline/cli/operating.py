"""Commands for what serves: `status` looks, `start` and `stop` act."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from llm_pipeline.base.errors import ConfigError, ExitCode
from llm_pipeline.cli.deployment_option import Commands, add_deployment_option, deployment_of
from llm_pipeline.cli.texts import sentence, write_lines

if TYPE_CHECKING:
    from llm_pipeline.config.deployment import Deployment
    from llm_pipeline.operations.place_status import DeploymentStatus
    from llm_pipeline.store.artifact_store import ArtifactStore

_PLACE = "name of a place of the deployment, e.g. cpu"
_ONE_PLACE = f"{_PLACE} (default: the only one)"


def add_commands(commands: Commands) -> None:
    """Add them to the parser."""
    summary = "say which release serves, since when, how its servers, router and guard are, and what does not fit"
    status = commands.add_parser(
        "status",
        help=summary,
        description=sentence(summary),
        epilog="Exit code 0: users are served and nothing is wrong; 1: served, and something is wrong; 5: users get no "
        "answer (dead, stopped, nothing in production), or it cannot be told from here.",
    )
    status.add_argument("place", nargs="?", help=f"{_PLACE} (default: all of them)")
    status.add_argument("--json", action="store_true", help="print JSON")
    add_deployment_option(status)
    status.set_defaults(run=_status)

    start = commands.add_parser("start", help="have production answer users, or stage a packaged release for a look")
    start.add_argument("place", nargs="?", help=_ONE_PLACE)
    start.add_argument("--staging", dest="release", metavar="RELEASE", help="stage this packaged release instead")
    add_deployment_option(start)
    start.set_defaults(run=_start)

    stop = commands.add_parser(
        "stop",
        help="stop production, or what is staged; the pointers stay, and `start` brings it back",
        description="Stop the router, where it is ours, and the servers of a place. Asked twice, done once.",
    )
    stop.add_argument("place", nargs="?", help=_ONE_PLACE)
    stop.add_argument("--staging", action="store_true", help="stop what is staged, not production")
    stop.add_argument("--release", default="", help="what is staged, where that server is none of this host")
    stop.add_argument("--yes", action="store_true", help="do not ask")
    stop.add_argument(
        "--drain", type=float, default=30.0, metavar="SECONDS", help="longest wait for requests in flight (default: 30)"
    )
    add_deployment_option(stop)
    stop.set_defaults(run=_stop)


def _status(options: argparse.Namespace) -> int:
    from llm_pipeline.operations.status import deployment_status
    from llm_pipeline.store import open_store

    deployment = deployment_of(options)
    places = [options.place] if options.place else None
    return _show(deployment_status(open_store(deployment.store), deployment, places), as_json=options.json)


def _show(status: DeploymentStatus, *, as_json: bool) -> int:
    if as_json:
        sys.stdout.write(json.dumps(status.model_dump(mode="json"), indent=1) + "\n")
    else:
        write_lines(status.lines())
    return status.exit_code


def _start(options: argparse.Namespace) -> int:
    from llm_pipeline.operations.status import deployment_status
    from llm_pipeline.operations.switching import start_production
    from llm_pipeline.store import open_store

    deployment, place = _named_place(options)
    store = open_store(deployment.store)
    if options.release:
        return _start_staging(store, deployment, place, options.release)
    serving = start_production(store, deployment, place)
    write_lines([f"{serving.pointer.release_id} of {serving.model_id} serves in {serving.pointer.slot}"])
    return _show(deployment_status(store, deployment, [place]), as_json=False)


def _start_staging(store: ArtifactStore, deployment: Deployment, place: str, reference: str) -> int:
    from llm_pipeline.operations.staging import start_staging
    from llm_pipeline.store.references import release_of, resolve_reference

    result = start_staging(store, deployment, place, release_of(resolve_reference(store, reference)))
    judgement = result.judgement
    write_lines([f"{result.release_id} is staged at {result.metrics['endpoint']}"])
    if judgement is None:
        return ExitCode.GO
    write_lines([f"{judgement.verdict}: {judgement.summary}"])
    return judgement.verdict.exit_code


def _stop(options: argparse.Namespace) -> int:
    from llm_pipeline.operations.staging import stop_staging
    from llm_pipeline.operations.switching import stop_production
    from llm_pipeline.store import open_store

    deployment, place = _named_place(options)
    store = open_store(deployment.store)
    if options.staging:
        stopped = stop_staging(store, deployment, place, release_id=options.release)
        write_lines([f"what was staged at {place} was stopped" if stopped else f"nothing was staged at {place}"])
        return ExitCode.GO
    if not (options.yes or _agreed(store, place)):
        write_lines(["nothing was stopped"])
        return ExitCode.INCONCLUSIVE
    done = stop_production(store, deployment, place, drain_seconds=options.drain)
    write_lines([f"{place}: stopped {', '.join(done)}" if done else f"{place}: nothing ran, nothing was stopped"])
    return ExitCode.GO


def _named_place(options: argparse.Namespace) -> tuple[Deployment, str]:
    """The deployment, and which of its places is meant."""
    from llm_pipeline.operations.status import require_place_of

    deployment = deployment_of(options)
    if options.place:
        require_place_of(deployment, options.place)
        return deployment, options.place
    if len(deployment.places) != 1:
        raise ConfigError(
            f"deployment {deployment.name} has {len(deployment.places)} places",
            hint=f"name one of them: {', '.join(deployment.places)}" if deployment.places else "add one to its file",
        )
    return deployment, next(iter(deployment.places))


def _agreed(store: ArtifactStore, place: str) -> bool:
    """Ask whoever sits at the terminal.

    Raises:
        ConfigError: Nobody does.
    """
    from llm_pipeline.local_run import ask_on_terminal
    from llm_pipeline.store.places import serving_at

    serving = serving_at(store, place)
    if serving is None:
        return True
    what = f"{serving.pointer.release_id} of {serving.model_id}"
    answer = ask_on_terminal(f"Stop {what} at {place}? Its users get no answer until `llm-pipeline start {place}`.")
    if answer is None:
        raise ConfigError(f"{what} is in production at {place}, and nobody can be asked", hint="give --yes")
    return answer
