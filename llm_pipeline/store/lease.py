"""Leases: one owner at a time for a piece of work, fenced by an epoch, taken over when the owner is gone.

A lease is one document, and its holder's conclusion is written into that same document by compare-and-swap. So a
holder that was frozen while another one took over cannot conclude anything: there is no moment between a check and a
write.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

from pydantic import JsonValue

from llm_pipeline.base.detached import process_start_ticks, visible_processes
from llm_pipeline.base.errors import Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.progress import made_progress
from llm_pipeline.base.records import Frozen
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict, Document
from llm_pipeline.store.documents import understood

log = get_logger(__name__)

_POLL_SECONDS = 1.0


class LeaseHeld(Transient):
    """Another process holds the lease."""


class LeaseLost(Transient):
    """Another process took the lease over; what was done since must not be published."""


class LeaseState(Frozen):
    """A lease as its document holds it.

    Attributes:
        host: The owner's host.
        pid: The owner's process there.
        start_ticks: When that process started, so that a reused pid is not taken for it.
        pids: Where that pid means something: the host's boot and its namespace of processes. Two containers may
            share a host's name and see different processes.
        epoch: Raised by every acquisition; an old owner's epoch is lower.
        expires_at: Seconds since 1970; zero once released.
        conclusion: What the last holder that ended its work wrote; later holders keep it until they conclude.
    """

    host: str
    pid: int
    start_ticks: int
    pids: str = ""
    epoch: int
    expires_at: float
    conclusion: dict[str, JsonValue] | None = None

    @property
    def free(self) -> bool:
        """Expired, released, or held by a process that is gone, if it could be seen from here."""
        return self.expires_at <= time.time() or self.holder_gone

    @property
    def holder_gone(self) -> bool:
        """Whether its holder could be seen from here and is not there any more."""
        return self.pids == visible_processes() and process_start_ticks(self.pid) != self.start_ticks


def lease_of(document: Document, name: str) -> LeaseState:
    """The lease that a document holds.

    Raises:
        IntegrityError: It holds none: nobody can tell who works there.
    """
    hint = "when nobody works on it any more, remove this document: the work is then done again"
    return understood(LeaseState, document.value, name, hint=hint)


class Lease:
    """Holds a lease while its `with` block runs, renewing it in the background.

    Args:
        store: Where the lease is kept.
        document: Its document, e.g. `leases/canary-cpu.json`.
        seconds: How long it lasts after its holder was heard of last.
    """

    def __init__(self, store: ArtifactStore, document: str, *, seconds: float = 60.0) -> None:
        self._store = store
        self._document = document
        self._seconds = seconds
        self._revision: str | None = None
        self._stop = threading.Event()
        self._lost = False
        self._renewer = threading.Thread(target=self._renew, name=f"lease {document}", daemon=True)
        self.epoch = 0
        self.conclusion: dict[str, JsonValue] | None = None

    def __enter__(self) -> Self:
        """Take the lease.

        Raises:
            LeaseHeld: Somebody else has it.
            IntegrityError: Its document is damaged.
        """
        document = self._store.read_document(self._document)
        if document is not None:
            held = lease_of(document, self._document)
            if not held.free:
                raise LeaseHeld(f"{self._document} is held by pid {held.pid} on {held.host}")
            self._revision, self.epoch, self.conclusion = document.revision, held.epoch, held.conclusion
        self.epoch += 1
        try:
            self._put(time.time() + self._seconds)
        except Conflict as error:
            raise LeaseHeld(f"{self._document} was just taken by another process") from error
        self._renewer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the lease back, unless it was lost."""
        if not self._end_renewals() and not self._lost:
            try:
                self._write(0.0)
            except (Conflict, Transient) as error:
                log.warning("could not release a lease; it will expire", lease=self._document, reason=str(error))

    def conclude(self, conclusion: dict[str, JsonValue]) -> None:
        """Write what the work came to and give the lease back, in one step.

        Raises:
            LeaseLost: The lease was taken over: nothing was written.
        """
        self._end_renewals()
        self.check()
        self.conclusion = conclusion
        try:
            self._write(0.0)
        except Conflict as error:
            self._lost = True
            raise self._loss() from error

    def check(self) -> None:
        """Make sure that the lease is still ours, before publishing.

        Raises:
            LeaseLost: It is not.
        """
        if self._lost:
            raise self._loss()

    def confirm(self) -> None:
        """`check`, by reading the store: a process that was stalled may not have noticed yet.

        Raises:
            LeaseLost: It is not ours any more.
            Transient: The store cannot be read.
        """
        self._lost = self._lost or self._own() is None
        self.check()

    def _own(self) -> Document | None:
        """Its document, if we wrote it last."""
        document = self._store.read_document(self._document)
        return document if document and lease_of(document, self._document).epoch == self.epoch else None

    def _loss(self) -> LeaseLost:
        return LeaseLost(f"{self._document} was taken over while this process was stalled", hint="run it again")

    def _end_renewals(self) -> bool:
        """Stop renewing; returns whether that had been done before."""
        ended = self._stop.is_set()
        self._stop.set()
        self._renewer.join()
        return ended

    def _write(self, expires_at: float) -> None:
        try:
            self._put(expires_at)
        except Conflict:
            if (own := self._own()) is None:
                raise
            self._revision = own.revision  # of a renewal whose answer was lost
            self._put(expires_at)

    def _put(self, expires_at: float) -> None:
        state = LeaseState(
            host=socket.gethostname(),
            pid=os.getpid(),
            start_ticks=process_start_ticks(os.getpid()) or 0,
            pids=visible_processes(),
            epoch=self.epoch,
            expires_at=expires_at,
            conclusion=self.conclusion,
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
            except Exception:  # the thread must go on: a lease that nobody renews is taken over
                log.exception("could not renew a lease", lease=self._document)


@contextmanager
def lease_in_turn(store: ArtifactStore, document: str) -> Iterator[Lease]:
    """Hold the lease of work that others may be doing, as soon as it is free: its conclusion may say all by then."""
    told = False
    with ExitStack() as stack:
        while True:
            try:
                lease = stack.enter_context(Lease(store, document))
                break
            except LeaseHeld as held:
                if not told:
                    log.info("the same work is being done elsewhere; waiting for its result", reason=held.message)
                told = True
                made_progress()  # whoever does the work has a limit of its own
                time.sleep(_POLL_SECONDS)
        yield lease
