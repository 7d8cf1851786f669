"""Commands for what serves users, and for canaries on their way there."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from llm_pipeline.base.errors import ConfigError, ExitCode
from llm_pipeline.cli.options import (
    Commands,
    add_command,
    deployment_of,
    named_release,
    open_flow,
    opened,
    seconds,
    write_json,
    write_lines,
    write_view,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llm_pipeline.canary.people import Reply
    from llm_pipeline.config.deployment import Deployment
    from llm_pipeline.store.artifact_store import ArtifactStore


_PLACE = "name of a place of the deployment, e.g. cpu"
_TARGETS_PLACE = "name of the place: its target's (e.g. cpu), unless the release config names another"
_ONE_PLACE = f"{_PLACE} (default: the only one)"


def add_commands(commands: Commands) -> None:
    """Add them to the parser."""
    summary = "show which release serves, the state of its servers, router and guard, and what is wrong"
    codes = (
        "Exit code 0: users are served and nothing is wrong; 1: served, and something is wrong; 5: users get no answer "
        "(dead, stopped, nothing in production), or this host cannot tell."
    )
    status = add_command(commands, "status", _status, summary, epilog=codes, json_too=True)
    status.add_argument("place", nargs="?", help=f"{_PLACE} (default: all of them)")

    summary = "pause the canary that runs at a place: its split stays, and it is still rolled back if it does harm"
    description = (
        "Pause the canary that runs at a place. Its split stays, no step ends or begins, and it is still watched. "
        "`resume` ends the pause; without that the canary is rolled back after the policy's pause_deadline_seconds. "
        "Safe to repeat."
    )
    pause = add_command(commands, "pause", _pause, summary, description=description)
    pause.add_argument("place", nargs="?", help=_ONE_PLACE)
    pause.add_argument("--reason", default="", help="recorded with the pause")

    resume = add_command(commands, "resume", _resume, "let a paused canary go on; safe to repeat")
    resume.add_argument("place", nargs="?", help=_ONE_PLACE)

    summary = "start production's servers and router, or stage a packaged release for a look"
    start = add_command(commands, "start", _start, summary)
    start.add_argument("place", nargs="?", help=_ONE_PLACE)
    start.add_argument("--staging", dest="release", metavar="RELEASE", help="stage this packaged release instead")

    summary = "end all that runs left serving, production included; the pointers stay, and `start` brings it back"
    description = (
        "Stop the router, where it is ours, and the servers of a place: production, what is staged, a canary whose run "
        "has ended (it is rolled back), and stages that a run left. Safe to repeat."
    )
    stop = add_command(commands, "stop", _stop, summary, description=description)
    stop.add_argument("place", nargs="?", help=f"{_PLACE} (default: all of them)")
    stop.add_argument("--staging", action="store_true", help="stop only what is staged")
    stop.add_argument("--release", default="", help="the staged release, if its server is not on this host")
    stop.add_argument("--yes", action="store_true", help="do not ask")
    help_text = "longest wait for requests in flight (default: 30)"
    stop.add_argument("--drain", type=seconds, default=30.0, metavar="SECONDS", help=help_text)

    summary = "answer the question that a release on its way asks, or will ask before production"
    description = (
        "Answer the question that a release on its way waits with (its budget, its licence, production), or the one "
        "before production, before it is asked. The first answer counts. A task that already waits in Airflow goes on "
        "when its form is answered there or times out, by the answer that was given here."
    )
    production = add_command(commands, "approve", _approve_production, summary, description=description)
    production.add_argument("release_id", metavar="release", help="the release's id, or the beginning of it")
    answer = production.add_mutually_exclusive_group()
    answer.add_argument(
        "--target", action="append", default=[], dest="targets", metavar="NAME",
        help="approve this target and refuse the others; give it again for another one",
    )  # fmt: skip
    answer.add_argument("--deny", action="store_true", help="end the release before production instead")

    approve = add_command(commands, "approve-step", _approve, "let a canary step begin, or a paused canary continue")
    approve.add_argument("release_id", metavar="release", help="the release's id, or the beginning of it")
    approve.add_argument("gpu_target", metavar="target", help=_TARGETS_PLACE)
    approve.add_argument("percent", type=float, help="the step, e.g. 25")
    approve.add_argument("--deny", action="store_true", help="roll the canary back instead")

    summary = "one pass of the watchdog: roll back canaries whose controller is gone, on the host of their servers"
    guard = add_command(commands, "guard", _guard, summary)
    guard.add_argument("--target", dest="gpu_target", metavar="NAME", help="only this one of the deployment's targets")

    summary = "roll back a release on trial or in production; safe to repeat"
    description = (
        "Leave a release and bring back the one that served before it. What was rolled back is never gone back to: "
        "only another release of it brings it into production again."
    )
    rollback = add_command(commands, "rollback", _roll_back, summary, description=description)
    rollback.add_argument("model_id", metavar="model", help="organisation/name")
    rollback.add_argument("gpu_target", metavar="target", help=_TARGETS_PLACE)
    help_text = (
        "the release to leave, or the beginning of its id (default: what is on trial, or else what serves, unless it "
        "serves because another release was rolled back)"
    )
    rollback.add_argument("--from", dest="leaving", default="", metavar="RELEASE", help=help_text)
    rollback.add_argument("--reason", default="", help="recorded with the rollback")
    help_text = (
        "the store takes no writes: move all users to the other slot by what router and servers show; nothing is "
        "recorded or stopped, and the same command without --force does that later"
    )
    rollback.add_argument("--force", action="store_true", help=help_text)
    rollback.add_argument("--by", default="", help="who requests it (default: you)")

    summary = "check this host: interpreters, containers, cluster, store, disk, Triton, Airflow, GPUs, driver"
    description = "Check this host by doing what stages do. Exit code 4 if a check failed."
    doctor = add_command(commands, "doctor", _doctor, summary, description=description, json_too=True)
    doctor.add_argument("config", type=Path, nargs="?", help="a release config, for its deployment and targets")


def _status(options: argparse.Namespace) -> int:
    from llm_pipeline.operations.status import deployment_status

    deployment, store = opened(options)
    status = deployment_status(store, deployment, [options.place] if options.place else None)
    write_view(status, as_json=options.json)
    return status.exit_code


def _pause(options: argparse.Namespace) -> int:
    from llm_pipeline.canary.people import pause
    from llm_pipeline.store.provenance import user_here

    _, store, place = _named_place(options)
    return _answer(pause(store, place, by=user_here(), why=options.reason))


def _resume(options: argparse.Namespace) -> int:
    from llm_pipeline.canary.people import resume
    from llm_pipeline.store.provenance import user_here

    _, store, place = _named_place(options)
    return _answer(resume(store, place, by=user_here()))


def _answer(asked: Reply) -> int:
    write_lines([asked.message])
    return ExitCode.GO if asked.counted else ExitCode.INCONCLUSIVE


def _start(options: argparse.Namespace) -> int:
    from llm_pipeline.operations.status import deployment_status
    from llm_pipeline.operations.switching import start_production

    deployment, store, place = _named_place(options)
    if options.release:
        return _start_staging(store, deployment, place, options.release)
    serving = start_production(store, deployment, place)
    write_lines([f"{serving.pointer.release_id} of {serving.model_id} serves in {serving.pointer.slot}"])
    status = deployment_status(store, deployment, [place])
    write_lines(status.lines())
    return status.exit_code


def _start_staging(store: ArtifactStore, deployment: Deployment, place: str, reference: str) -> int:
    from llm_pipeline.operations.status import curl_line_at, deployment_status
    from llm_pipeline.operations.switching import start_staging

    result = start_staging(store, deployment, place, named_release(store, reference))
    judgement, endpoint = result.judgement, str(result.metrics["endpoint"])
    write_lines([f"{result.release_id} is staged at {endpoint}"])
    if judgement is not None:
        write_lines([f"{judgement.verdict}: {judgement.summary}"])
    write_lines([f"ask it  {curl_line_at(endpoint)}", f"end it  llm-pipeline stop {place} --staging"])
    write_lines(deployment_status(store, deployment, [place]).lines())
    return ExitCode.GO if judgement is None else judgement.verdict.exit_code


def _stop(options: argparse.Namespace) -> int:
    from llm_pipeline.notifications.telling import tell_canary
    from llm_pipeline.operations.switching import on_its_way, stop_all

    if options.staging:
        return _stop_staging(options)
    deployment, store = opened(options)
    places = [_named_place(options)[2]] if options.place else list(deployment.places)
    if not (options.yes or _agreed(store, places)):
        write_lines(["nothing was stopped"])
        return ExitCode.INCONCLUSIVE
    for place in places:
        done = stop_all(store, deployment, place, drain_seconds=options.drain)
        write_lines([f"{place}: stopped {', '.join(done)}" if done else f"{place}: nothing ran, nothing was stopped"])
        if holder := on_its_way(store, place):
            write_lines([f"{place}: {holder} is on its way, and ends what it has staged itself"])
    for place in places:
        tell_canary(deployment, place)
    return ExitCode.GO


def _stop_staging(options: argparse.Namespace) -> int:
    from llm_pipeline.operations.switching import stop_staging

    deployment, store, place = _named_place(options)
    stopped = stop_staging(store, deployment, place, release_id=options.release)
    write_lines([f"what was staged at {place} was stopped" if stopped else f"nothing was staged at {place}"])
    return ExitCode.GO


def _named_place(options: argparse.Namespace) -> tuple[Deployment, ArtifactStore, str]:
    """The deployment and its store, and which of its places is meant."""
    from llm_pipeline.operations.served_place import require_place_of

    deployment, store = opened(options)
    if options.place:
        require_place_of(deployment, options.place)
        return deployment, store, options.place
    if len(deployment.places) != 1:
        raise ConfigError(
            f"deployment {deployment.name} has {len(deployment.places)} places",
            hint=f"name one of them: {', '.join(deployment.places)}" if deployment.places else "add one to its file",
        )
    return deployment, store, next(iter(deployment.places))


def _agreed(store: ArtifactStore, places: Sequence[str]) -> bool:
    """Ask whoever sits at the terminal, where something is in production.

    Raises:
        ConfigError: Nobody does.
    """
    from llm_pipeline.local_run import ask_on_terminal
    from llm_pipeline.store.place_state import serving_at

    served = [(place, serving) for place in places if (serving := serving_at(store, place)) is not None]
    if not served:
        return True
    what = "; ".join(f"{one.pointer.release_id} of {one.model_id} at {place}" for place, one in served)
    answer = ask_on_terminal(f"Stop {what}? Its users get no answer until `llm-pipeline start`.")
    if answer is None:
        raise ConfigError(f"in production: {what}, and nobody can be asked", hint="give --yes")
    return answer


def _approve_production(options: argparse.Namespace) -> int:
    from llm_pipeline.operations.decisions import decide, offered_targets, waiting_step
    from llm_pipeline.store.provenance import user_here

    flow = open_flow(options, options.release_id)
    step = waiting_step(flow)
    targets = offered_targets(flow, step)
    if not targets:
        raise ConfigError(f"no target of {flow.record.release_id} has passed its gates", hint="see `llm-pipeline show`")
    decided = decide(flow, step, targets, approved=not options.deny, by=user_here(), taken=options.targets)
    return _answer(decided)


def _approve(options: argparse.Namespace) -> int:
    from llm_pipeline.canary.people import answer
    from llm_pipeline.store.provenance import user_here

    _, store = opened(options)
    release_id = named_release(store, options.release_id)
    approved, by = not options.deny, user_here()
    answered = answer(store, release_id, options.gpu_target, options.percent, approved=approved, by=by)
    code = _answer(answered)
    if answered.counted and options.deny:
        sys.stdout.write("the canary's controller or the guard rolls it back; `llm-pipeline guard` does it now\n")
    return code


def _guard(options: argparse.Namespace) -> int:
    from llm_pipeline.notifications.telling import tell_canary
    from llm_pipeline.operations.guard import guard_once
    from llm_pipeline.operations.served_place import require_place_of
    from llm_pipeline.operations.status import deployment_status, named_deployment

    deployment, store = opened(options)
    if options.gpu_target is not None:
        require_place_of(deployment, options.gpu_target)
        only = {options.gpu_target: deployment.places[options.gpu_target]}
        deployment = deployment.model_copy(update={"places": only})
    write_lines([f"{named_deployment(deployment.name, store.uri)}, places {', '.join(deployment.places) or 'none'}"])
    actions = guard_once(store, deployment)
    for place in deployment.places:
        tell_canary(deployment, place)
    for action in actions:
        write_lines([f"{action.gpu_target}  {action.release_id}  {action.what}: {action.detail}"])
    if not actions:
        sys.stdout.write("nothing to do\n")
    dead = list(deployment_status(store, deployment).dead())
    write_lines(dead)
    return ExitCode.INFRASTRUCTURE if dead or any(action.what == "failed" for action in actions) else ExitCode.GO


def _roll_back(options: argparse.Namespace) -> int:
    from llm_pipeline.notifications.telling import tell_canary
    from llm_pipeline.operations.rollback import force, roll_back
    from llm_pipeline.operations.served_place import place_as_it_is, place_with_router
    from llm_pipeline.store.provenance import user_here

    (deployment, store), target = opened(options), options.gpu_target
    by = options.by or user_here()
    by = f"{by}: {options.reason}" if options.reason else by
    if options.force:
        done = force(place_as_it_is(store, deployment, options.model_id, target), by=by)
        write_lines([f"{target}: {done}", "nothing is recorded: run it without --force once the store takes writes"])
        return ExitCode.GO
    place = place_with_router(store, deployment, options.model_id, target)
    production = roll_back(place, by=by, leaving=options.leaving).production
    tell_canary(deployment, target)
    serving = f"{production.release_id} serves in {production.slot}" if production else "nothing serves"
    sys.stdout.write(f"{options.model_id} on {target}: {serving}\n")
    return ExitCode.GO


def _doctor(options: argparse.Namespace) -> int:
    from llm_pipeline.operations.doctor import examine
    from llm_pipeline.planning.task_pool import task_modules
    from llm_pipeline.release.loading import load_release

    if options.config:
        loaded = load_release(options.config)
        modules = task_modules(loaded.release.evaluation)
        checks = examine(loaded.deployment, loaded.release.targets, modules)
    else:
        checks = examine(deployment_of(options))
    if options.json:
        write_json([check.model_dump() for check in checks])
    else:
        width = max(len(check.subject) for check in checks)
        for check in checks:
            advice = f" -> {check.fix}" if check.fix else ""
            write_lines([f"{check.state:<8} {check.subject:<{width}}  {check.detail}{advice}"])
    return ExitCode.BAD_INPUT if any(check.state == "failed" for check in checks) else ExitCode.GO
