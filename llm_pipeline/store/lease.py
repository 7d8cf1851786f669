"""Leases: one owner at a time for a piece of work, fenced by an epoch, taken over when the owner is gone."""

from __future__ import annotations

import os
import socket
import threading
import time
from types import TracebackType
from typing import Self

from llm_pipeline.errors import Transient
from llm_pipeline.logging import get_logger
from llm_pipeline.runners.detached import process_start_ticks
from llm_pipeline.stages.contract import Frozen
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict

log = get_logger(__name__)


class LeaseHeld(Transient):
    """Somebody else holds the lease."""


class LeaseLost(Transient):
    """The lease was taken over by somebody else; what we did since must not be published."""


class LeaseState(Frozen):
    """A lease as stored.

    Attributes:
        owner: Host, pid and start time of the owner.
        epoch: Raised by every acquisition; an old owner's epoch is lower.
        expires_at: Seconds since 1970; zero once released.
    """

    host: str
    pid: int
    start_ticks: int
    epoch: int
    expires_at: float

    @property
    def free(self) -> bool:
        """Expired, released, or held by a process of this host that is gone."""
        if self.expires_at <= time.time():
            return True
        return self.host == socket.gethostname() and process_start_ticks(self.pid) != self.start_ticks


class Lease:
    """Holds `leases/<name>.json` while its `with` block runs, renewing it in the background."""

    def __init__(self, store: ArtifactStore, name: str, *, seconds: float = 60.0) -> None:
        self._store = store
        self._document = f"leases/{name}.json"
        self._seconds = seconds
        self._revision: str | None = None
        self._stop = threading.Event()
        self._lost = False
        self._renewer = threading.Thread(target=self._renew, name=f"lease {name}", daemon=True)
        self.epoch = 0

    def __enter__(self) -> Self:
        """Take the lease.

        Raises:
            LeaseHeld: Somebody else has it.
        """
        document = self._store.read_document(self._document)
        if document is not None:
            held = LeaseState.model_validate(document.value)
            if not held.free:
                raise LeaseHeld(f"{self._document} is held by pid {held.pid} on {held.host}")
            self._revision, self.epoch = document.revision, held.epoch
        self.epoch += 1
        try:
            self._write(time.time() + self._seconds)
        except Conflict as error:
            raise LeaseHeld(f"{self._document} was just taken by somebody else") from error
        self._renewer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the lease back, unless it was lost."""
        self._stop.set()
        self._renewer.join()
        if not self._lost:
            try:
                self._write(0.0)
            except (Conflict, Transient) as error:
                log.warning("could not give back a lease; it will expire", lease=self._document, reason=str(error))

    def check(self) -> None:
        """Make sure that the lease is still ours, before publishing.

        Raises:
            LeaseLost: It is not.
        """
        if self._lost:
            raise LeaseLost(f"{self._document} was taken over while this process was stalled", hint="run it again")

    def _write(self, expires_at: float) -> None:
        pid = os.getpid()
        state = LeaseState(
            host=socket.gethostname(),
            pid=pid,
            start_ticks=process_start_ticks(pid) or 0,
            epoch=self.epoch,
            expires_at=expires_at,
        )
        self._revision = self._store.write_document(self._document, state.model_dump(), self._revision)

    def _renew(self) -> None:
        while not self._stop.wait(self._seconds / 3):
            try:
                self._write(time.time() + self._seconds)
            except Conflict:
                self._lost = True
                return
            except Transient as error:
                log.warning("could not renew a lease", lease=self._document, reason=str(error))
