"""What a canary's steps cannot do, in plain words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.planning.canary_steps import SERIOUS_RISE, Proposal, StepPower, duration


def canary_warnings(policy: CanaryPolicy, steps: Sequence[StepPower], proposal: Proposal | None) -> Iterator[str]:
    """One line for each thing that looks as if it could be done, and cannot."""
    if late := [step for step in steps if step.enough_seconds > policy.maximum_bake_seconds]:
        yield (
            f"minimum_requests {policy.minimum_requests} may take {_of_each(late, _enough)}: beyond "
            f"maximum_bake_seconds {policy.maximum_bake_seconds:g} a step ends undecided"
        )
    blind = [step for step in steps if not step.guards]
    if blind:
        seconds = f"in minimum_bake_seconds {policy.minimum_bake_seconds:g}"
        yield f"{seconds}, the comparison catches {_of_each(blind, _catches)}, and nothing milder"
    if proposal:
        shares = ", ".join(f"{percent:g}" for percent in proposal.steps_percent)
        yield (
            f"steps_percent [{shares}] with minimum_bake_seconds {proposal.minimum_bake_seconds:g} and "
            f"maximum_bake_seconds {proposal.maximum_bake_seconds:g} would catch {SERIOUS_RISE:g} times the errors at "
            "every step"
        )
    elif blind:
        yield f"no step would catch {SERIOUS_RISE:g} times the errors within an hour: there is too little traffic"
    proofs = [(step.errors.seconds, step.errors.requests, step.percent) for step in steps if step.errors]
    if proofs and min(proofs)[0] > policy.maximum_bake_seconds:
        soonest, requests, percent = min(proofs)
        yield (
            f"no step can prove parity of errors: at {percent:g} % it takes about {requests:,.0f} requests, "
            f"{duration(soonest)}; a step that passes has seen no regression, and no more"
        )


def _of_each(steps: Sequence[StepPower], words: Callable[[StepPower], str]) -> str:
    return ", ".join(f"{words(step)} at {step.percent:g} %" for step in steps)


def _enough(step: StepPower) -> str:
    return duration(step.enough_seconds)


def _catches(step: StepPower) -> str:
    seen, caught = step.shortest.candidate_requests, step.shortest.error_ratio
    least = "no rise of errors at all" if caught is None else f"{caught:.3g} times the errors"
    return f"{least} in {seen:.3g} candidate requests"
