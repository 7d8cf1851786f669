"""A person's decision about a step of the flow (before production, say): one document, whoever asks and answers.

    put(flow, step, targets, question)                              # by the DAG's task, and by the run without Airflow
    decide(flow, step, targets, approved=True, by="alice@host")     # its form, the terminal, the command line
    require_production_approved(store, release_id, "h100")          # before traffic moves, and before the pointers do

A decision belongs to one run of a release and to what the person saw: the question with its evidence, by digest. A gate
that is judged anew, or another run, needs a new one. The first answer to a question stands. It moves nothing by itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from llm_pipeline.base.digest import sha256_json
from llm_pipeline.base.errors import ConfigError, Terminal
from llm_pipeline.canary.people import Reply
from llm_pipeline.operations.served_place import despite_others
from llm_pipeline.questions import Question, question_of
from llm_pipeline.release.decision import Answer, Decision, answer_in_words, decision_name
from llm_pipeline.release.execute import outdate_summary
from llm_pipeline.release.flow import APPROVAL, release_flow
from llm_pipeline.release.record import trusted_record
from llm_pipeline.release.step import Effect, Kind, Scope
from llm_pipeline.release_progress import ReleaseProgress, passed
from llm_pipeline.store.artifact_store import ArtifactStore


class NotApproved(Terminal):
    """Nobody approved what is about to go into production."""


class Decided(Reply):
    """What an answer came to, and the decision that stands."""

    decision: Decision


def put(flow: ReleaseProgress, step: str, targets: Sequence[str], question: Question) -> Decision:
    """Put a question; returns its answer instead where somebody answered it before it was put.

    A question that was put and answered before is put anew: somebody wants to be asked again. But an approval to spend
    stands, in any run, for all that spends no more.

    Args:
        flow: The release.
        step: The step of the flow that asks.
        targets: What is asked about.
        question: As the person sees it.
    """
    asked = _asked(flow, step, targets, question)

    def attempt() -> Decision:
        known, revision = _read(flow, step)
        if known is not None and _spends_no_more(known, asked):
            return known
        if known is not None and known.answer != "waiting" and known.asked_at is None and _same(known, asked):
            return known
        return _write(flow, asked.model_copy(update={"asked_at": time.time()}), revision)

    return despite_others(attempt)


def decide(
    flow: ReleaseProgress, step: str, targets: Sequence[str], *, approved: bool, by: str, taken: Sequence[str] = ()
) -> Decided:
    """Answer a question, also before it is put. Asked twice, the first answer stands.

    Args:
        flow: The release.
        step: The step of the flow that asks.
        targets: What is asked about.
        approved: The answer.
        by: Who answered; empty when the time to answer ran out.
        taken: Of the targets, those that are approved; empty for all of them.

    Raises:
        ConfigError: There is nothing to decide, or what is taken is not asked about.
    """
    if others := [target for target in taken if target not in targets]:
        hint = f"it is about {', '.join(targets)}"
        raise ConfigError(f"nobody is asked about {', '.join(others)}", where=flow.record.release_id, hint=hint)
    asked = _question(flow, step, targets)

    def attempt() -> Decided:
        known, revision = _read(flow, step)
        same = known is not None and _same(known, asked)
        if known is not None and same and known.answer != "waiting":
            words = f"too late, nothing was changed: it was {answer_in_words(known.answer, known.by)}"
            return Decided(counted=False, message=words, decision=known)
        answer: Answer = "approved" if approved else "denied" if by else "timed out"
        update = {"answer": answer, "answered_at": time.time(), "by": by, "taken": tuple(taken) if approved else ()}
        decision = (known if known is not None and same else asked).model_copy(update=update)
        _write(flow, decision, revision)
        words = f"{answer}: {flow.record.release_id} on {', '.join(decision.taken or decision.targets)}"
        return Decided(counted=True, message=words, decision=decision)

    return despite_others(attempt)


def waiting_step(flow: ReleaseProgress) -> str:
    """The step whose question waits for an answer in this run of a release; by default, the one before production."""
    for step in release_flow():
        if step.kind is Kind.QUESTION and step.scope is Scope.RELEASE:
            known, _ = _read(flow, step.name)
            if known is not None and known.answer == "waiting" and known.run == _run(flow):
                return step.name
    return APPROVAL


def read_decision(flow: ReleaseProgress, step: str) -> Decision | None:
    """The question of a step and its answer, as they stand; None before the question was put or answered."""
    return _read(flow, step)[0]


def offered_targets(flow: ReleaseProgress, step: str) -> Sequence[str]:
    """What a question is about: as it was put in this run, or else the targets whose gates have passed so far."""
    known, _ = _read(flow, step)
    if known is not None and known.run == _run(flow):
        return known.targets
    gates = [gate.name for gate in release_flow() if gate.ends is Scope.TARGET and gate.effect is not Effect.PRODUCTION]
    results = {target: [flow.find(gate, target) for gate in gates] for target in flow.targets}
    return [target for target, found in results.items() if all(one is not None and passed(one) for one in found)]


def require_production_approved(store: ArtifactStore, release_id: str, place: str) -> None:
    """Make sure that a person approved a release for a place, if it wants a person for that.

    Raises:
        ConfigError: There is no such release.
        NotApproved: Nobody did in this run of the release, or what was approved is not what the gates say now.
    """
    flow = ReleaseProgress(store, trusted_record(store, release_id), trusts_signed_only=True)
    if not flow.release.approval.required:
        return
    target, (known, _) = flow.record.target_at(place), _read(flow, APPROVAL)
    hint = f"answer the question of the step {APPROVAL}, or `llm-pipeline approve {release_id}`"
    if known is None or known.run != _run(flow) or target not in known.targets:
        raise NotApproved(f"nobody approved {target} in this run of the release", where=release_id, hint=hint)
    if known.answer != "approved":
        told = answer_in_words(known.answer, known.by)
        raise NotApproved(f"{target} is not approved: the question is {told}", where=release_id, hint=hint)
    if not known.takes(target):
        raise NotApproved(f"{known.by} refused {target}", where=release_id, hint=hint)
    if not _same(known, _question(flow, APPROVAL, known.targets)):
        words = f"{target} is not approved: the gates say something else than what {known.by} approved"
        raise NotApproved(words, where=release_id, hint=f"put the question of the step {APPROVAL} again")


def _question(flow: ReleaseProgress, step: str, targets: Sequence[str]) -> Decision:
    question = question_of(step, flow, targets)
    if question is None:
        raise ConfigError(f"there is nothing to decide about {step}", where=flow.record.release_id)
    return _asked(flow, step, targets, question)


def _asked(flow: ReleaseProgress, step: str, targets: Sequence[str], question: Question) -> Decision:
    evidence = sha256_json([question.title, question.body])
    return Decision(
        run=_run(flow),
        step=step,
        targets=tuple(targets),
        question=question.line,
        evidence=evidence,
        amounts=dict(question.amounts),
    )


def _spends_no_more(known: Decision, asked: Decision) -> bool:
    """Whether somebody approved, in any run, to spend what is asked about now."""
    if known.answer != "approved" or not asked.amounts:
        return False
    return all(amount <= known.amounts.get(what, -1.0) for what, amount in asked.amounts.items())


def _same(known: Decision, asked: Decision) -> bool:
    return (known.run, known.targets, known.evidence) == (asked.run, asked.targets, asked.evidence)


def _run(flow: ReleaseProgress) -> str:
    return flow.resolved_at.isoformat()


def _read(flow: ReleaseProgress, step: str) -> tuple[Decision | None, str | None]:
    return flow.store.read_as(decision_name(flow.record.release_id, step), Decision)


def _write(flow: ReleaseProgress, decision: Decision, revision: str | None) -> Decision:
    name = decision_name(flow.record.release_id, decision.step)
    outdate_summary(flow.store, flow.record.release_id)
    flow.store.write_document(name, decision.model_dump(mode="json"), revision)
    return decision
