"""Who holds the claim on a model and who waits for it, as data, and how each event changes it. Pure."""

from __future__ import annotations

import socket
import uuid
from datetime import UTC, datetime, timedelta
from os import getpid
from typing import Literal

from pydantic import Field

from llm_pipeline.base.detached import process_start_ticks, visible_processes
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.release import ReleaseConfig

RENEWED_EVERY = timedelta(minutes=5)

_LONGEST_STAGE = timedelta(hours=24)
_LOCAL_STALE_AFTER = timedelta(hours=1)
"""A local process renews its claim in the background, however long a stage or an approval takes."""


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
        pids: Where that pid means something: the host's boot and its namespace of processes, as in a lease. Empty in
            a claim of a version before: nobody can tell whether that process lives.
        run: Tells apart the runs of one process.
    """

    kind: Literal["local"] = "local"
    host: str
    pid: int
    start_ticks: int
    pids: str = ""
    run: str

    @classmethod
    def here(cls) -> LocalProcess:
        """A new run of this process."""
        ticks = process_start_ticks(getpid()) or 0
        return cls(
            host=socket.gethostname(),
            pid=getpid(),
            start_ticks=ticks,
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


class Claimant(Frozen):
    """A release that holds a claim or waits for it.

    Attributes:
        party: Who runs it.
        release: Name of the release config.
        release_id: The release, once its first stage has named it.
        concurrency: What it does about older releases of the model.
        asked_at: When its run came into being: the later, the newer.
        since: When it asked for the claim first.
        renewed_at: When it was heard of last.
        stale_after_hours: Silent for so long, a holder is taken for dead by those who cannot ask for it.
        parked: It waits for a human, and computes and serves nothing meanwhile.
        superseded_by: The newer release that takes its place, in words.
    """

    party: Party = Field(discriminator="kind")
    release: str
    release_id: str = ""
    concurrency: Literal["wait", "supersede"]
    asked_at: datetime
    since: datetime
    renewed_at: datetime
    stale_after_hours: float
    parked: bool = False
    superseded_by: str = ""

    @classmethod
    def of(cls, config: ReleaseConfig, party: Party, asked_at: datetime) -> Claimant:
        """The claimant of a release config's run."""
        now = datetime.now(UTC)
        patience = _LONGEST_STAGE + timedelta(hours=config.approval.timeout_hours)
        if isinstance(party, LocalProcess):
            patience = _LOCAL_STALE_AFTER
        return cls(
            party=party,
            release=config.name,
            concurrency=config.concurrency,
            asked_at=asked_at,
            since=now,
            renewed_at=now,
            stale_after_hours=patience.total_seconds() / 3600,
        )

    def __str__(self) -> str:
        return f"release {self.release_id or self.release} ({self.party})"

    def newer_than(self, other: Claimant) -> bool:
        """A total order, the same for everybody."""
        return (self.asked_at, str(self.party)) > (other.asked_at, str(other.party))

    def silent_for(self, limit: timedelta) -> bool:
        """Whether it was not heard of for so long."""
        return datetime.now(UTC) - self.renewed_at > limit


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

    def find(self, party: Party) -> Claimant | None:
        """The claimant of a party."""
        return next((one for one in self.everyone if one.party == party), None)

    def holds(self, party: Party) -> bool:
        """Whether the party is the holder."""
        return self.holder is not None and self.holder.party == party

    def without(self, party: Party) -> ClaimState:
        """This state, without that party as holder or in line."""
        waiting = tuple(one for one in self.waiting if one.party != party)
        return ClaimState(holder=None if self.holds(party) else self.holder, waiting=waiting)

    def updated(self, claimant: Claimant) -> ClaimState:
        """This state, with one claimant replaced."""
        holder, *waiting = (
            claimant if one and one.party == claimant.party else one for one in (self.holder, *self.waiting)
        )
        return ClaimState(holder=holder, waiting=tuple(one for one in waiting if one))

    def asked(self, claimant: Claimant) -> ClaimState:
        """The state after that claimant asked, for the first time or again; it may hold the claim then."""
        known = self.find(claimant.party)
        if known is None:
            state = ClaimState(holder=self.holder, waiting=(*self.waiting, claimant))
        else:
            renewed = {"renewed_at": claimant.renewed_at} if known.silent_for(RENEWED_EVERY) else {}
            state = self.updated(known.model_copy(update=renewed))
        return state.with_older_ones_superseded().granted_to(claimant.party)

    def heard_of(self, party: Party) -> ClaimState:
        """This state, with that party renewed just now."""
        known = self.find(party)
        return self if known is None else self.updated(known.model_copy(update={"renewed_at": datetime.now(UTC)}))

    def with_older_ones_superseded(self) -> ClaimState:
        """This state, with everyone marked who is older than a claimant that supersedes."""
        superseding = [one for one in self.everyone if one.concurrency == "supersede"]
        newest: Claimant | None = None
        for one in superseding:
            newest = one if newest is None or one.newer_than(newest) else newest
        state = self
        for one in self.everyone:
            if newest is not None and newest.newer_than(one) and not one.superseded_by:
                state = state.updated(one.model_copy(update={"superseded_by": str(newest)}))
        return state

    def granted_to(self, party: Party) -> ClaimState:
        """This state, with the claim granted to that party if it is free and the party is first in line."""
        free = self.holder is None or (self.holder.parked and self.holder.superseded_by != "")
        first = next((one for one in self.waiting if not one.superseded_by), None)
        if not free or first is None or first.party != party:
            return self
        return ClaimState(holder=first, waiting=tuple(one for one in self.waiting if one.party != party))
