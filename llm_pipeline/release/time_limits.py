"""How long each stage may take: by the plan and the policy, or more where the stage's own settings need it. Pure."""

from __future__ import annotations

from llm_pipeline.base.quantities import duration
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.loadtest.duration import session_seconds
from llm_pipeline.release.contract import TimeLimit
from llm_pipeline.release.flow import step_named
from llm_pipeline.release.step import Work

_HOUR = 3600.0
_FACTOR = 4.0
"""The limit of a stage, in times what the plan expects of it; it hangs if it does not get on for that part of it."""

_LEAST_SECONDS = _HOUR / 2
_UNPLANNED_SECONDS = 4 * _HOUR
"""Of a stage of which the plan expects nothing."""

_LOAD_TEST_FACTOR = 5.0
"""Extensions, more rounds of the comparison and waits between windows, by the shortest session."""


def time_limit(release: ResolvedRelease, stage: str, planned_seconds: float | None = None) -> TimeLimit:
    """The time limit of one stage.

    Args:
        release: Its policy and settings.
        stage: Name of the stage.
        planned_seconds: What the plan expects of it for this subject; None where it expects nothing.
    """
    most, own = _HOUR * release.policy.longest_stage_hours, _own_seconds(release, stage)
    if planned_seconds is None:
        seconds, basis = _UNPLANNED_SECONDS, "of a stage of which nothing is planned"
    else:
        seconds, basis = _FACTOR * planned_seconds, f"{_FACTOR:g} x the planned {duration(planned_seconds)}"
    if seconds < _LEAST_SECONDS:
        seconds, basis = _LEAST_SECONDS, "the shortest of any stage"
    if seconds > most:
        seconds, basis = most, "the longest of any stage"
    if own > seconds:
        seconds, basis = own, "by the stage's own settings"
    return TimeLimit(
        seconds=seconds,
        stall_seconds=min(seconds, max(_LEAST_SECONDS, seconds / _FACTOR, own)),
        longest_seconds=max(most, own),
        basis=basis,
        setting=f"longest_stage_hours of policy {release.policy.name}",
    )


def _own_seconds(release: ResolvedRelease, stage: str) -> float:
    """What the stage's own settings let it take; 0 where they say nothing."""
    step = step_named(stage)
    match step.work if step else None:
        case Work.BAKE:
            return _canary_step_seconds(release)
        case Work.SERVER_START:
            return _HOUR + release.policy.staging.ready_timeout_seconds
        case Work.LOAD:
            start = release.policy.staging.ready_timeout_seconds
            return start + _LOAD_TEST_FACTOR * session_seconds(release.workload, release.policy.load_test)
        case Work.BUILD:
            return _HOUR + max(60.0 * target.build.time_limit_minutes for target in release.targets)
        case _:
            return 0.0


def _canary_step_seconds(release: ResolvedRelease) -> float:
    """One step with its server's start, the warm-up before it, and a pause for as long as it may wait for a person."""
    canary = release.policy.canary
    start = release.policy.staging.ready_timeout_seconds
    return _HOUR + start + canary.maximum_bake_seconds + canary.pause_deadline_seconds + canary.drain_seconds
