"""The longest time of each stage: the policy's limit, or more where the stage's own settings need it. Pure."""

from __future__ import annotations

from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.loadtest.duration import session_seconds
from llm_pipeline.release.flow import step_named
from llm_pipeline.release.step import Work

_HOUR = 3600.0
_LOAD_TEST_FACTOR = 5.0
"""Extensions, more rounds of the comparison and waits between windows, by the shortest session."""


def time_limit_seconds(release: ResolvedRelease, stage: str) -> float:
    """The policy's limit for one stage, or more where the stage's own settings let it take longer."""
    limit = release.policy.time_limit_hours * _HOUR
    step = step_named(stage)
    match step.work if step else None:
        case Work.BAKE:
            return max(limit, _canary_step_seconds(release))
        case Work.LOAD:
            return max(limit, _LOAD_TEST_FACTOR * session_seconds(release.workload, release.policy.load_test))
        case Work.BUILD:
            return max(limit, _HOUR + max(60.0 * target.build.time_limit_minutes for target in release.targets))
        case _:
            return limit


def _canary_step_seconds(release: ResolvedRelease) -> float:
    """One step with its server's start, the warm-up before it, and a pause for as long as it may wait for a person."""
    canary = release.policy.canary
    start = release.policy.staging.ready_timeout_seconds + canary.warm_up_mirror_seconds
    shadow = canary.shadow
    if shadow is not None:
        start += shadow.prompts / shadow.requests_per_second + shadow.timeout_seconds
    return _HOUR + start + canary.maximum_bake_seconds + canary.pause_deadline_seconds + canary.drain_seconds
