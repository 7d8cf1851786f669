"""One error budget for all gates of a candidate: adding items until it passes must not work.

    ledger = GateLedger(store, "accuracy", checkpoint.digest)
    number = ledger.enter(stage_key)
    share = share_of_error(policy, number, rungs)
    judgement = judge(..., policy_at(policy, share))
    ledger.close(stage_key, judgement.verdict)

A candidate that loses exactly the margin passes a gate in 5 %; who adds items after each INCONCLUSIVE, and has three
gates, passes it in almost 10 %. So the error is divided: the first gate has four fifths of it, each later one four
fifths of what is left, which is never more than all of it, however many gates follow and however alike their items
are (Bonferroni's inequality; the division is alpha spending over gates, as in `spending` over looks). The first gate
pays for that with 7 % more items at the same power.

What is counted are gates that ended without a GO. The same gate, asked again or taken up after a crash, has the same
stage key and is the same entry. The ledger lies in the store, under the content of what is judged; that of a
candidate outlives its artifacts, for a candidate made anew is the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llm_pipeline.accuracy.gate import ERROR_FACT
from llm_pipeline.base.records import Frozen
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict
from llm_pipeline.store.documents import understood

FIRST_SHARE = 0.8
"""Of the error, what the first gate of a candidate may spend; each later one has this share of what is left."""


class _Entry(Frozen):
    key: str
    number: int
    verdict: Verdict | None = None


class _Ledger(Frozen):
    gates: tuple[_Entry, ...] = ()


@dataclass(frozen=True)
class GateLedger:
    """The gates of one candidate in one lane.

    Attributes:
        store: Where it is kept.
        lane: Name of the stage that judges.
        candidate: Digest of what is judged.
    """

    store: ArtifactStore
    lane: str
    candidate: str

    @property
    def document(self) -> str:
        """Its name in the store."""
        return f"accuracy-gates/{self.lane}.{self.candidate}.json"

    def enter(self, key: str) -> int:
        """The number of the gate with that stage key among the candidate's, from 1; the same on each call.

        Raises:
            IntegrityError: The ledger is damaged.
        """
        return self._change(lambda gates: _entered(gates, key), key).number

    def close(self, key: str, verdict: Verdict) -> None:
        """Note how the gate ended, which must have been entered.

        Raises:
            IntegrityError: The ledger is damaged.
        """
        self._change(
            lambda gates: tuple(
                gate.model_copy(update={"verdict": verdict}) if gate.key == key else gate for gate in gates
            ),
            key,
        )

    def _change(self, change: Callable[[tuple[_Entry, ...]], tuple[_Entry, ...]], key: str) -> _Entry:
        while True:
            found = self.store.read_document(self.document)
            hint = "restore it from a backup; without it the candidate's next gate starts the error budget again"
            before = understood(_Ledger, found.value, self.document, hint=hint) if found else _Ledger()
            after = _Ledger(gates=change(before.gates))
            try:
                if after != before:
                    self.store.write_document(
                        self.document, after.model_dump(mode="json"), found.revision if found else None
                    )
            except Conflict:
                continue
            return next(gate for gate in after.gates if gate.key == key)


def _entered(gates: tuple[_Entry, ...], key: str) -> tuple[_Entry, ...]:
    if any(gate.key == key for gate in gates):
        return gates
    ended = sum(gate.verdict not in (None, Verdict.GO) for gate in gates)
    return (*gates, _Entry(key=key, number=ended + 1))


def share_of_error(policy: AccuracyPolicy, number: int, rungs: int = 1) -> float:
    """What one gate may spend of the policy's error.

    Args:
        policy: Says among what the error is divided.
        number: Of the candidate's gates, from 1.
        rungs: Recipes of the ladder.
    """
    if policy.error_budget == "gate":
        return 1.0
    share = FIRST_SHARE * (1.0 - FIRST_SHARE) ** (number - 1)
    return share / rungs if policy.error_budget == "ladder" else share


def policy_at(policy: AccuracyPolicy, share: float) -> AccuracyPolicy:
    """The policy with only a share of its error to spend."""
    return policy.model_copy(update={"confidence": 1.0 - share * (1.0 - policy.confidence)})


def ladder_error(policy: AccuracyPolicy, rungs: int) -> float:
    """The chance, at most, that some rung passes at its first gate if each of them loses exactly the margin."""
    error = share_of_error(policy, 1, rungs) * (1.0 - policy.confidence)
    return 1.0 - (1.0 - error) ** rungs if rungs else 0.0


def with_error(judgement: Judgement, policy: AccuracyPolicy, number: int, share: float) -> Judgement:
    """The judgement with the error that it may make, and of how many gates."""
    whole = 1.0 - policy.confidence
    mine, total = f"{100 * share * whole:.3g} %", f"{100 * whole:.3g} %"
    spent = f"Gate {number} of this candidate may err with {mine}, of {total} for all of its gates."
    fact = Evidence(
        name=ERROR_FACT,
        verdict=Verdict.GO,
        measured=share * whole,
        limit=whole,
        unit="fraction",
        samples=number,
        detail=spent,
    )
    summary = f"{judgement.summary} {spent}" if number > 1 else judgement.summary
    return judgement.model_copy(update={"summary": summary, "evidence": (*judgement.evidence, fact)})
