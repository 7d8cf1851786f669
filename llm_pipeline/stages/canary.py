"""One step of a canary: subject `<target>:<percent>`. Acts on live traffic, so it is never reused."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from llm_pipeline.base.errors import Fenced
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Metric
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.canary.controller import CanaryController, CountedTraffic, LoggedTraffic, Traffic
from llm_pipeline.canary.metrics import open_source
from llm_pipeline.canary.record import (
    LEASE_SECONDS,
    CanaryJournal,
    CanaryPlan,
    judged_by_others,
    lease_name,
    read_canary_record,
)
from llm_pipeline.canary.router import Patience, TrafficRouter
from llm_pipeline.canary.slots import RECOGNISED, ServedPlace, SlotControl, slot_endpoint
from llm_pipeline.canary.timeline import write_timeline
from llm_pipeline.config.model import Fraction, Percent
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.config.release import Drill
from llm_pipeline.config.workload import Workload, longest
from llm_pipeline.operations.decisions import require_production_approved
from llm_pipeline.operations.switching import start
from llm_pipeline.release.contract import PROMPTS_DATASET, Inputs, Produced, Stage, StageContext, StageOutput
from llm_pipeline.release.trusted_pointers import require_served
from llm_pipeline.stages.place_config import PlaceConfig
from llm_pipeline.store.lease import Lease, LeaseLost
from llm_pipeline.store.place_state import claim_place, serving_at

if TYPE_CHECKING:
    from llm_pipeline.canary.replay import Replay
    from llm_pipeline.release_progress import ReleaseProgress

log = get_logger(__name__)


class CanaryConfig(PlaceConfig):
    """What one canary step reads.

    Attributes:
        run: The run of the release, as a time: the next run may try a canary again that is over, the same may not.
        step_percent: The candidate's share at this step.
        policy: The rules of the canary.
        drill: A fault for the candidate's server, on purpose.
        workload: Its prompts are asked of the router where the policy has replayed traffic.
        recognised: Share of the golden answers that a server must give that was started elsewhere.
    """

    run: str
    step_percent: Percent
    policy: CanaryPolicy
    drill: Drill | None = None
    workload: Workload
    recognised: Fraction = RECOGNISED


def run(context: StageContext[CanaryConfig]) -> StageOutput:
    """Run one step: shift, watch, judge.

    Raises:
        NotApproved: The release wants a person's approval before production, and has none.
    """
    config = context.config
    require_production_approved(context.store, context.request.release_id, config.target)
    candidate = context.request.inputs["repository"]
    slots = config.slots(context.store, config.drill, recognised=config.recognised)
    claim_place(context.store, config.target, config.model_id, by=context.request.release_id)
    serving = serving_at(context.store, config.target)
    production = serving.pointer if serving else None
    if serving is not None:
        require_served(context.store, serving.model_id, config.target, serving.pointer)
    router = config.open_router(production.slot if production else "blue", owner="first-start")
    patience = Patience.with_router(config.place.router)
    if production is not None:
        router.name_release(production.slot, production.release_id)
    if production is not None and production.repository == candidate:  # what is released serves already: it must answer
        start(ServedPlace(context.store, config.model_id, config.target, router, slots, patience), lambda _: router)
        detail = f"production already serves {candidate}: no traffic was shifted"
        fact = Evidence(name="already in production", verdict=Verdict.GO, measured=1.0, samples=1, detail=detail)
        return StageOutput(judgement=judge("already in production", [fact]))
    replay = _replay(context) if production is not None else None
    plan = CanaryPlan(
        release_id=context.request.release_id,
        run=config.run,
        target=config.target,
        candidate=candidate,
        production=production,
        policy=config.policy,
        patience=patience,
    )
    with replay.sending() if replay is not None else contextlib.nullcontext():
        judgement = _judge(context, plan, router, slots)
    return _output(context, judgement, replay, router)


def _judge(
    context: StageContext[CanaryConfig], plan: CanaryPlan, router: TrafficRouter, slots: SlotControl
) -> Judgement:
    """Drive the step to its end, whoever ends it."""
    config, place = context.config, context.config.place
    traffic: Traffic
    if place.metrics is None:
        traffic = LoggedTraffic(router.access_log())
    else:
        traffic = CountedTraffic(open_source(place.metrics, place.router, router))
    journal = CanaryJournal(context.store, plan.release_id, plan.target)
    try:
        with Lease(context.store, lease_name(plan.target), seconds=LEASE_SECONDS) as lease:
            controller = CanaryController(
                plan, journal=journal, lease=lease, router=router, traffic=traffic, slots=slots
            )
            return controller.run_step(config.step_percent)
    except (Fenced, LeaseLost):
        found = judged_by_others(context.store, plan.release_id, plan.target)
        if found is None:
            raise
        return found


def _replay(context: StageContext[CanaryConfig]) -> Replay | None:
    """Traffic of the canary's own, where the policy wants it and the users' port is known."""
    config, place = context.config, context.config.place.router
    rate = config.policy.replay_requests_per_second
    if rate == 0.0:
        return None
    if not place.users_url():
        log.warning("nothing is replayed: the users' port of this router is not known here", kind=place.kind)
        return None
    from llm_pipeline.canary.replay import Replay
    from llm_pipeline.loadtest.prompts import read_prompts
    from llm_pipeline.loadtest.workload import locate_prompts

    prompts = read_prompts(locate_prompts(config.workload, context.inputs["prompts"]))
    return Replay(
        slot_endpoint(config.place.blue).model_copy(update={"url": place.users_url(), "ca_file": None}),
        [prompt.text for prompt in prompts],
        maximum_tokens=longest(config.workload.output_tokens),
        rate_per_second=rate,
        trusted=place.users_certificate(),
    )


def _output(
    context: StageContext[CanaryConfig], judgement: Judgement, replay: Replay | None, router: TrafficRouter
) -> StageOutput:
    """The judgement, which says how many of the step's requests were no users', and the canary's record."""
    record = read_canary_record(context.store, context.request.release_id, context.config.target)
    if record is None:
        return StageOutput(judgement=judgement)
    metrics: dict[str, Metric] = {
        "phase": record.phase.value,
        "passed_percent": record.passed_percent,
        "attempt": record.attempt,
    }
    step = record.analysis.step if record.analysis else None
    if step is not None:
        metrics["candidate_requests"] = step.candidate.requests
        metrics["stable_requests"] = step.stable.requests
        metrics["candidate_errors"] = step.candidate.failed
        metrics["lost_requests"] = step.candidate.lost + step.stable.lost
        requests = step.candidate.requests + step.stable.requests
        replayed = min(replay.sent_since(record.step_began_at), requests) if replay is not None else 0
        if replayed:
            words = f"{replayed} of {requests} requests were replayed prompts of the workload"
            judgement = judgement.model_copy(update={"summary": f"{judgement.summary}; {words}"})
    directory = context.workdir / "canary"
    access_log = router.access_log() if context.config.place.metrics is None else None
    write_timeline(directory, record, access_log)
    return StageOutput(artifacts={"canary": Produced("canary", directory)}, metrics=metrics, judgement=judgement)


def request(flow: ReleaseProgress, subject: str) -> tuple[CanaryConfig, Inputs]:
    """What the stage is given."""
    target, _, percent = subject.partition(":")
    config = CanaryConfig.of(
        flow,
        target,
        run=flow.resolved_at.isoformat(),
        step_percent=float(percent),
        policy=flow.release.policy.canary,
        drill=flow.release.drill,
        workload=flow.release.workload,
        recognised=min(RECOGNISED, flow.release.policy.staging.golden_match_fraction),
    )
    inputs = {"repository": flow.artifact("package", target, "repository")}
    if config.policy.replay_requests_per_second > 0:
        inputs["prompts"] = flow.record.datasets[PROMPTS_DATASET]
    return config, inputs


STAGE = Stage(name="canary", version=1, config=CanaryConfig, request=request, run=run)
