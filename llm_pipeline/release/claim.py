"""At most one release of a model on its way in a store: the claim on a model, one document changed by compare-and-swap.

    claim = ReleaseClaim(store, model_id, claimant)
    with claim.held():              # waits for its turn
        claim.check(release_id)     # before each stage: still ours

Who asks is put in line, first come first served. The holder gives the claim back itself, after it has taken down what
it started, so two never overlap. Only a dead holder loses it.
"""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from os import getpid
from typing import Literal

from pydantic import Field

from llm_pipeline.base.detached import process_start_ticks, visible_processes
from llm_pipeline.base.errors import Terminal, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.release import ReleaseConfig
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.documents import DamagedDocument

_POLL_SECONDS = 2.0
RENEWED_EVERY = timedelta(minutes=5)

_CLAIMS = "claims"
_DAMAGED = "when no release of the model is on its way, remove this document"
_WAITER_STALE_AFTER = timedelta(hours=1)
_LONGEST_STAGE = timedelta(hours=24)
_LOCAL_STALE_AFTER = timedelta(hours=1)
"""A local process renews its claim in the background, however long a stage or an approval takes."""

log = get_logger(__name__)


class ClaimLost(Terminal):
    """This run does not hold the claim on its model."""


class AirflowRun(Frozen):
    """A DAG run that releases.

    Attributes:
        airflow: Which Airflow it is in; only that one can tell whether the run is over.
    """

    kind: Literal["airflow"] = "airflow"
    airflow: str
    dag_id: str
    run_id: str

    def __str__(self) -> str:
        return f"DAG {self.dag_id}, run {self.run_id}"


class LocalProcess(Frozen):
    """A release run by `llm-pipeline run`.

    Attributes:
        start_ticks: When the process started, so that a reused pid is not taken for it.
        pids: Where that pid means something: the host's boot and its namespace of processes, as in a lease.
        run: Tells apart the runs of one process.
    """

    kind: Literal["local"] = "local"
    host: str
    pid: int
    start_ticks: int
    pids: str
    run: str

    @classmethod
    def here(cls) -> LocalProcess:
        """A new run of this process."""
        return cls(
            host=socket.gethostname(),
            pid=getpid(),
            start_ticks=process_start_ticks(getpid()) or 0,
            pids=visible_processes(),
            run=uuid.uuid4().hex[:8],
        )

    @property
    def alive(self) -> bool | None:
        """Whether the process still runs; None when it cannot be seen from here, and only its silence tells."""
        return process_start_ticks(self.pid) == self.start_ticks if self.pids == visible_processes() else None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


Party = AirflowRun | LocalProcess

RunIsOver = Callable[[AirflowRun], bool | None]
"""Whether a DAG run ended or was deleted; None when it is of another Airflow than the one that was asked."""


class Claimant(Frozen):
    """A release that holds a claim or waits for it.

    Attributes:
        party: Who runs it.
        release: Name of the release config.
        release_id: The release, once its first stage has named it.
        since: When it asked for the claim first.
        renewed_at: When it was heard of last.
        stale_after_hours: Silent for so long, a holder is taken for dead by those who cannot ask for it.
        parked: It waits for a human, and computes and serves nothing meanwhile.
    """

    party: Party = Field(discriminator="kind")
    release: str
    release_id: str = ""
    since: datetime
    renewed_at: datetime
    stale_after_hours: float
    parked: bool = False

    @classmethod
    def of(cls, config: ReleaseConfig, party: Party) -> Claimant:
        """The claimant of a release config's run."""
        now, patience = datetime.now(UTC), _LOCAL_STALE_AFTER
        if isinstance(party, AirflowRun):
            patience = _LONGEST_STAGE + timedelta(hours=config.approval.timeout_hours)
        hours = patience.total_seconds() / 3600
        return cls(party=party, release=config.name, since=now, renewed_at=now, stale_after_hours=hours)

    def __str__(self) -> str:
        return f"release {self.release_id or self.release} ({self.party})"

    def silent_for(self, limit: timedelta) -> bool:
        """Whether it was not heard of for so long."""
        return datetime.now(UTC) - self.renewed_at > limit

    def renewed(self) -> Claimant:
        """The same, heard of just now."""
        return self.model_copy(update={"renewed_at": datetime.now(UTC)})


class ClaimState(Frozen):
    """The claim on a model as stored.

    Attributes:
        holder: The release on its way; None when there is none.
        waiting: Who is in line, first come first.
    """

    holder: Claimant | None = None
    waiting: tuple[Claimant, ...] = ()

    @property
    def everyone(self) -> tuple[Claimant, ...]:
        """Holder and line."""
        return ((self.holder,) if self.holder else ()) + self.waiting

    def holds(self, party: Party) -> bool:
        """Whether the party is the holder."""
        return self.holder is not None and self.holder.party == party

    def without(self, party: Party) -> ClaimState:
        """This state, without that party as holder or in line."""
        waiting = tuple(one for one in self.waiting if one.party != party)
        return ClaimState(holder=None if self.holds(party) else self.holder, waiting=waiting)

    def heard_of(self, party: Party) -> ClaimState:
        """This state, with that party renewed just now."""
        holder, *waiting = (
            one.renewed() if one and one.party == party else one for one in (self.holder, *self.waiting)
        )
        return ClaimState(holder=holder, waiting=tuple(one for one in waiting if one))

    def asked(self, claimant: Claimant) -> ClaimState:
        """The state after that claimant asked, for the first time or again; it may hold the claim then."""
        known = next((one for one in self.everyone if one.party == claimant.party), None)
        state = self
        if known is None:
            state = ClaimState(holder=self.holder, waiting=(*self.waiting, claimant))
        elif known.silent_for(RENEWED_EVERY):
            state = self.heard_of(claimant.party)
        if state.holder is None and state.waiting[0].party == claimant.party:
            return ClaimState(holder=state.waiting[0], waiting=state.waiting[1:])
        return state


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
        """Ask for the claim once; returns None if this run holds it now, else whom it waits for."""
        buried: dict[str, str] = {}

        def asked(state: ClaimState) -> ClaimState:
            buried.clear()
            for other in state.everyone:
                if why := "" if other.party == self._party else self._why_gone(other, holds=other == state.holder):
                    buried[str(other)] = why
                    state = state.without(other.party)
            return state.asked(self._claimant.renewed())

        state = _change(self._store, self._model_id, asked)
        for other, why in buried.items():
            log.warning(f"{other} no longer counts: {why}", model=self._model_id)
        return None if state.holds(self._party) else state.holder or state.waiting[0]

    def check(self, release_id: str = "") -> None:
        """Make sure, before something is started, that this release may go on; the holder is heard of by that.

        Args:
            release_id: The release, once it is known.

        Raises:
            ClaimLost: We do not hold the claim.
        """
        self._renew(parked=False, release_id=release_id)

    def park(self) -> None:
        """Record that this run waits for a person: what it staged may be looked at, or stopped, meanwhile.

        Raises:
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
    def held(self) -> Iterator[None]:
        """Wait for the claim, hold it in the `with` block, and give it back."""
        ended = threading.Event()
        renewing = threading.Thread(target=self._renew_until, args=(ended,), name="claim", daemon=True)
        told: Party | None = None
        try:
            while (other := self.ask()) is not None:
                if other.party != told:
                    log.info(self.waiting_for(other))
                    told = other.party
                time.sleep(_POLL_SECONDS)
            renewing.start()
            try:
                yield
            finally:
                ended.set()
                renewing.join()
        finally:
            try:
                self.give_back()
            except Transient as error:
                log.warning("could not release the claim on the model", model=self._model_id, reason=str(error))

    def waiting_for(self, other: Claimant) -> str:
        """Whom we wait for and since when it is on its way, in words that help."""
        return (
            f"{self._model_id}: waiting for {other}, there since {other.since:%Y-%m-%d %H:%M} UTC; "
            f"if that is wrong, free {claim_name(self._model_id)}: "
            f"llm-pipeline claims --free {self._model_id}"
        )

    def _renew_until(self, ended: threading.Event) -> None:
        """Renew the claim while a stage runs, for observers that cannot see this process."""
        while not ended.wait(RENEWED_EVERY.total_seconds()):
            try:
                _change(self._store, self._model_id, lambda state: state.heard_of(self._party))
            except Exception as error:  # noqa: BLE001 - the thread goes on: a claim that nobody renews is taken over
                log.warning("could not renew the claim on the model", model=self._model_id, reason=str(error))

    def _renew(self, *, parked: bool, release_id: str = "") -> None:
        def renewed(state: ClaimState) -> ClaimState:
            mine = state.holder
            if mine is None or mine.party != self._party:
                why = f"{mine} does" if mine else "it gave it back, or somebody freed it"
                raise ClaimLost(
                    f"this run does not hold the claim on {self._model_id} any more: {why}",
                    where=claim_name(self._model_id),
                    hint="start the release again (in Airflow: clear the run's task `claim`, and all that follows)",
                )
            wanted = mine.model_copy(update={"parked": parked, "release_id": release_id or mine.release_id})
            if wanted == mine and not mine.silent_for(RENEWED_EVERY):
                return state
            return ClaimState(holder=wanted.renewed(), waiting=state.waiting)

        _change(self._store, self._model_id, renewed)

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
    return f"{_CLAIMS}/{model_id}.json"


def read_claim(store: ArtifactStore, model_id: str) -> ClaimState:
    """The claim on a model now.

    Raises:
        IntegrityError: The document is damaged.
    """
    return store.read_as(claim_name(model_id), ClaimState, hint=_DAMAGED)[0] or ClaimState()


def readable_claims(store: ArtifactStore) -> tuple[dict[str, ClaimState], list[DamagedDocument]]:
    """All claims that can be read, by model, and the documents that cannot.

    Raises:
        Transient: The documents cannot even be listed.
    """
    return store.readable_as(_CLAIMS, ClaimState, hint=_DAMAGED)


def free_claim(store: ArtifactStore, model_id: str) -> Claimant | None:
    """Take the claim away from its holder, by hand; returns who held it.

    A holder that is alive after all starts no further stage.
    """
    holder = read_claim(store, model_id).holder
    _change(store, model_id, lambda state: ClaimState(waiting=state.waiting))
    return holder


def _change(store: ArtifactStore, model_id: str, transition: Callable[[ClaimState], ClaimState]) -> ClaimState:
    """Apply a transition to the state as it is at that moment; returns the new state."""
    return store.edit_as(claim_name(model_id), ClaimState, transition, hint=_DAMAGED)
