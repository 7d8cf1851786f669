"""At most one release of a model on its way in a store: the claim on a model, one document changed by compare-and-swap.

    claim = ReleaseClaim(store, model_id, claimant)
    with claim.held():              # waits for its turn
        claim.check(release_id)     # before each stage: still ours, and nobody newer supersedes us

Who asks is put in line, first come first served. Where a release's `concurrency` is `supersede`, it marks every older
one, holder or in line: those end at their next check. The holder gives the claim back itself, after it has taken down
what it started, so two never overlap. Only a dead holder loses the claim, or a superseded one that waits for a human.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath

from llm_pipeline.base.errors import ExitCode, PipelineError, Terminal, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.release.claim_state import RENEWED_EVERY, AirflowRun, Claimant, ClaimState, LocalProcess, Party
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict
from llm_pipeline.store.documents import DamagedDocument, understood
from llm_pipeline.store.model_documents import ModelDocument, is_shared, model_of_release, models_of_part

LOCAL_POLL_SECONDS = 2.0

_WAITER_STALE_AFTER = timedelta(hours=1)
_CLAIMS = "claims"

log = get_logger(__name__)


class Superseded(Terminal):
    """A newer release of the model takes this one's place."""

    exit_code = ExitCode.INCONCLUSIVE


class ClaimLost(Terminal):
    """This run does not hold the claim on its model."""


RunIsOver = Callable[[AirflowRun], bool | None]
"""Whether a DAG run ended or was deleted; None when it is of another Airflow than the one that was asked."""


class ReleaseClaim:
    """The claim on a model, as one release takes, checks and gives it back.

    Args:
        store: Where the claim is kept.
        model_id: `organisation/name`.
        claimant: The release.
        run_is_over: Asks this Airflow about a DAG run; None outside of Airflow.
    """

    def __init__(
        self, store: ArtifactStore, model_id: str, claimant: Claimant, *, run_is_over: RunIsOver | None = None
    ) -> None:
        self._store = store
        self._model_id = model_id
        self._claimant = claimant
        self._run_is_over = run_is_over
        self._party = claimant.party

    def ask(self) -> Claimant | None:
        """Ask for the claim once; returns None if this run holds it now, else the holder.

        Raises:
            Superseded: A newer release takes our place; we are not in line any more.
        """
        buried: dict[str, str] = {}

        def asked(state: ClaimState) -> ClaimState:
            buried.clear()
            for other in state.everyone:
                if why := "" if other.party == self._party else self._why_gone(other, holds=other == state.holder):
                    buried[str(other)] = why
                    state = state.without(other.party)
            renewed = self._claimant.model_copy(update={"renewed_at": datetime.now(UTC)})
            return state.asked(renewed)

        state = _change(self._store, self._model_id, asked)
        for other, why in buried.items():
            log.warning(f"{other} no longer counts: {why}", model=self._model_id)
        return self._answer(state)

    def check(self, release_id: str = "") -> None:
        """Make sure, before something is started, that this release may go on; the holder is heard of by that.

        Args:
            release_id: The release, once it is known.

        Raises:
            Superseded: A newer release takes our place.
            ClaimLost: We do not hold the claim.
        """
        self._renew(parked=False, release_id=release_id)

    def park(self) -> None:
        """Record that this run waits for a person: a release that supersedes it need not wait for the answer.

        Raises:
            Superseded: A newer release takes our place.
            ClaimLost: We do not hold the claim.
        """
        self._renew(parked=True)

    def taken_by_another(self) -> Claimant | None:
        """The other release that holds the claim now; None if nobody or this one holds it."""
        holder = read_claim(self._store, self._model_id).holder
        return None if holder is None or holder.party == self._party else holder

    def give_back(self) -> bool:
        """Give the claim, or the place in line, back; returns whether this run held the claim."""
        held = read_claim(self._store, self._model_id).holds(self._party)
        _change(self._store, self._model_id, lambda state: state.without(self._party))
        return held

    @contextmanager
    def held(self, poll_seconds: float = LOCAL_POLL_SECONDS) -> Iterator[None]:
        """Wait for the claim, hold it in the `with` block, and give it back.

        Raises:
            Superseded: A newer release took our place while we waited.
        """
        try:
            self._wait(poll_seconds)
            with self._renewed_in_the_background():
                yield
        finally:
            try:
                self.give_back()
            except Transient as error:
                log.warning("could not release the claim on the model", model=self._model_id, reason=str(error))

    def waiting_for(self, other: Claimant) -> str:
        """Whom we wait for and since when it is on its way, in words that help."""
        on_its_way = f"{other.since:%Y-%m-%d %H:%M} UTC"
        return (
            f"{self._model_id}: waiting for {other}, there since {on_its_way}; "
            f"if that is wrong, free {claim_name(self._model_id)}: "
            f"llm-pipeline claims --free {self._model_id}"
        )

    def _wait(self, poll_seconds: float) -> None:
        told: Party | None = None
        while (other := self.ask()) is not None:
            if other.party != told:
                log.info(self.waiting_for(other))
                told = other.party
            time.sleep(poll_seconds)

    @contextmanager
    def _renewed_in_the_background(self) -> Iterator[None]:
        """Renew the claim while a stage runs, for observers that cannot see this process."""
        ended = threading.Event()
        renewing = threading.Thread(target=self._renew_until, args=(ended,), name="claim", daemon=True)
        renewing.start()
        try:
            yield
        finally:
            ended.set()
            renewing.join()

    def _renew_until(self, ended: threading.Event) -> None:
        while not ended.wait(RENEWED_EVERY.total_seconds()):
            try:
                _change(self._store, self._model_id, lambda state: state.heard_of(self._party))
            except PipelineError as error:
                log.warning("could not renew the claim on the model", model=self._model_id, reason=str(error))
            except Exception:  # the thread must go on: a claim that nobody renews is taken over
                log.exception("could not renew the claim on the model", model=self._model_id)

    def _answer(self, state: ClaimState) -> Claimant | None:
        mine = state.find(self._party) or self._claimant
        if mine.superseded_by:
            if not state.holds(self._party):
                self.give_back()
            raise self._superseded(mine.superseded_by)
        if state.holds(self._party):
            return None
        return state.holder or next(one for one in state.waiting if not one.superseded_by)

    def _renew(self, *, parked: bool, release_id: str = "") -> None:
        def renewed(state: ClaimState) -> ClaimState:
            mine = self._mine(state)
            waits = parked and not mine.superseded_by  # one that ends now takes down what it started: no waiting
            wanted = mine.model_copy(update={"parked": waits, "release_id": release_id or mine.release_id})
            if wanted == mine and not parked and not mine.silent_for(RENEWED_EVERY):
                return state
            return state.updated(wanted.model_copy(update={"renewed_at": datetime.now(UTC)}))

        if newer := self._mine(_change(self._store, self._model_id, renewed)).superseded_by:
            raise self._superseded(newer)

    def _mine(self, state: ClaimState) -> Claimant:
        if state.holder is None:
            raise ClaimLost(
                f"this run does not hold the claim on {self._model_id} any more: it gave it back, a newer release took "
                "its place and ended, or somebody freed it",
                where=claim_name(self._model_id),
                hint="start the release again (in Airflow: clear the run's task `claim`, and all that follows)",
            )
        if state.holder.party != self._party:
            raise self._superseded(str(state.holder))
        return state.holder

    def _superseded(self, newer: str) -> Superseded:
        return Superseded(
            f"superseded by {newer}: this release of {self._model_id} ends here",
            hint="what it computed is kept; follow the newer one",
        )

    def _why_gone(self, other: Claimant, *, holds: bool) -> str:
        """Why a claimant does not count any more; empty as long as it does."""
        party = other.party
        if not holds and other.silent_for(_WAITER_STALE_AFTER):
            return f"it stopped asking at {other.renewed_at:%Y-%m-%d %H:%M} UTC"
        if isinstance(party, LocalProcess) and party.alive is not None:
            return "" if party.alive else "its process is gone"
        if self._run_is_over and isinstance(party, AirflowRun) and (over := self._run_is_over(party)) is not None:
            return "its DAG run is over" if over else ""
        if other.silent_for(timedelta(hours=other.stale_after_hours)):
            return f"it gave no sign of life since {other.renewed_at:%Y-%m-%d %H:%M} UTC"
        return ""


def claim_name(model_id: str) -> str:
    """Name of the claim's document."""
    return _document(model_id).name


def read_claim(store: ArtifactStore, model_id: str) -> ClaimState:
    """The claim on a model now.

    Raises:
        IntegrityError: The document is damaged.
    """
    return _read(store, model_id)[0]


def read_claims(store: ArtifactStore) -> dict[str, ClaimState]:
    """All claims, by model.

    Raises:
        IntegrityError: A document of them is damaged.
        Transient: One cannot be read.
    """
    found, damaged = readable_claims(store)
    if damaged:
        raise damaged[0].error
    return found


def readable_claims(store: ArtifactStore) -> tuple[dict[str, ClaimState], list[DamagedDocument]]:
    """All claims that can be read, by model, and the documents that cannot.

    Raises:
        Transient: The documents cannot even be listed.
    """
    found: dict[str, ClaimState] = {}
    damaged = []
    for name in store.list_documents(_CLAIMS):
        try:
            models = models_of_part(PurePosixPath(name).stem)
            claims = {model: read_claim(store, model) for model in models}
        except PipelineError as error:
            damaged.append(DamagedDocument(name, error))
            continue
        found.update({model: state for model, state in claims.items() if len(models) == 1 or state.everyone})
    return found, damaged


def free_claim(store: ArtifactStore, model_id: str) -> Claimant | None:
    """Take the claim away from its holder, by hand; returns who held it.

    A holder that is alive after all starts no further stage.
    """
    freed: list[Claimant | None] = []

    def without_holder(state: ClaimState) -> ClaimState:
        freed.append(state.holder)
        return ClaimState(waiting=state.waiting)

    _change(store, model_id, without_holder)
    return freed[-1]


def _change(store: ArtifactStore, model_id: str, transition: Callable[[ClaimState], ClaimState]) -> ClaimState:
    """Apply a transition to the state as it is at that moment; returns the new state."""
    while True:
        state, revision = _read(store, model_id)
        wanted = transition(state)
        if wanted == state:
            return state
        with contextlib.suppress(Conflict):
            _document(model_id).write(store, wanted.model_dump(mode="json"), revision)
            return wanted
        time.sleep(random.uniform(0.0, 0.05))  # noqa: S311 - spreads writers, protects nothing


def _document(model_id: str) -> ModelDocument:
    return ModelDocument.of(f"{_CLAIMS}/{{model}}.json", model_id)


def _read(store: ArtifactStore, model_id: str) -> tuple[ClaimState, str | None]:
    """The claim, and the revision it was read at."""
    place = _document(model_id)
    document = place.read(store)
    if document is None:
        return ClaimState(), None
    hint = "when no release of the model is on its way, remove this document"
    state = understood(ClaimState, document.value, place.name, hint=hint)
    return _of_model(store, state, model_id) if is_shared(document) else state, document.revision


def _of_model(store: ArtifactStore, state: ClaimState, model_id: str) -> ClaimState:
    """Without those who release another model, as far as the store knows what they release."""
    for one in state.everyone:
        if model_of_release(store, one.release_id) not in (None, model_id):
            state = state.without(one.party)
    return state
