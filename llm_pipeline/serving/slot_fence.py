"""The lock of a server slot, and the fence of a place against owners that were replaced without noticing.

Every act on a slot of a place carries a token, and a token older than the newest one seen is refused. A controller
that was frozen loses its lease without noticing. When it wakes up, it may be about to start or stop a server, and no
check that it made before it was frozen holds any more. So the check is made where the server is, under the lock of its
slot: nothing is started or stopped between the check and the act.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from llm_pipeline.base.durable import replace_durably
from llm_pipeline.base.errors import Fenced, IntegrityError
from llm_pipeline.base.file_lock import flocked
from llm_pipeline.base.logging import get_logger

log = get_logger(__name__)
_FILE = "fence.json"
_LOCK = "fence.lock"


@contextmanager
def exclusive(state: Path) -> Iterator[None]:
    """Hold a slot's lock; it is free again when the process ends, however it does."""
    state.mkdir(parents=True, exist_ok=True)
    with flocked(state / "lock"):
        yield


@dataclass(frozen=True, order=True)
class FencingToken:
    """The owner of a place; of two, the one that took over later is greater.

    Attributes:
        epoch: Above every epoch that its holder found at the router, in the record and at the slots.
        lease: Epoch of its holder's lease, which the store gives once: it orders two owners that found the same epoch.
    """

    epoch: int
    lease: int


_TOKEN = TypeAdapter(FencingToken)


def newest_token(place: Path) -> FencingToken:
    """The newest token that the slots of a place have seen; before the first, the lowest possible one.

    Args:
        place: Directory of the place's state, above those of its slots.

    Raises:
        IntegrityError: The file holds no token.
    """
    file = place / _FILE
    try:
        return _TOKEN.validate_json(file.read_bytes())
    except FileNotFoundError:
        return FencingToken(epoch=0, lease=0)
    except ValidationError as error:
        hint = "make sure that nothing acts on this place, then remove the file"
        raise IntegrityError(
            "this file does not name who acted on the slots last", where=str(file), hint=hint
        ) from error


def admit(place: Path, token: FencingToken) -> None:
    """Let the holder of a token act on a slot of the place, and refuse all older ones from now on.

    The caller holds the slot's lock from here until its act is done.

    Raises:
        Fenced: A newer token was seen.
        IntegrityError: See `newest_token`.
    """
    place.mkdir(parents=True, exist_ok=True)
    with flocked(place / _LOCK):
        newest = newest_token(place)
        if token < newest:
            raise Fenced(
                f"the slots were taken over with epoch {newest.epoch}, and this is epoch {token.epoch}",
                where=str(place),
                hint="nothing was started or stopped; the process that took over continues",
            )
        if token == newest:
            return
        try:
            replace_durably(place / _FILE, _TOKEN.dump_json(token))
        except OSError as error:  # a full disk must not prevent stopping a server that does harm
            log.warning("cannot record who acts on the slots", place=str(place), reason=str(error), **asdict(token))
