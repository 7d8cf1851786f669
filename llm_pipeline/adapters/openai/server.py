"""A server with OpenAI's API that somebody else runs: it is waited for and checked, and never started or stopped.

Which candidate is staged there is written down, so that two releases are not measured on one server at a time.
"""

from __future__ import annotations

import time

from llm_pipeline.adapters.openai.adapter import OpenAiServer
from llm_pipeline.base.durable import replace_durably
from llm_pipeline.base.errors import Unsupported
from llm_pipeline.base.json_document import find_record
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen
from llm_pipeline.serving.control import Candidate, StagedServer, StagingSlot
from llm_pipeline.serving.endpoint_access import await_no_requests, once_it_answers, require_model
from llm_pipeline.serving.slot_fence import exclusive
from llm_pipeline.serving.triton_server import SlotBusy

log = get_logger(__name__)


class StagedThere(Frozen):
    """What is staged on the server: the digest of its repository, and how long the model was waited for."""

    digest: str
    ready_seconds: float


class OpenAiControl:
    """Takes the server for one candidate, and gives it back."""

    def __init__(self, place: OpenAiServer, slot: StagingSlot) -> None:
        self._endpoint = place.endpoint
        self._slot = slot
        self._record = slot.state / "openai.json"

    def start(self, candidate: Candidate, *, wait_seconds: float) -> StagedServer:
        """Wait until the server has the model, and check that it takes requests as long as the target's.

        Raises:
            IntegrityError: It has other models, or is no server with OpenAI's API.
        """
        with exclusive(self._slot.state):
            staged = self._staged()
            if staged is not None and staged.digest != candidate.digest:
                raise SlotBusy(
                    f"the server is taken by repository {staged.digest[:12]}",
                    where=self._endpoint.url,
                    hint="stop that staging first",
                )
            started = time.monotonic()
            self._require_length(once_it_answers(require_model, self._endpoint, wait_seconds))
            staged = staged or StagedThere(digest=candidate.digest, ready_seconds=round(time.monotonic() - started, 3))
            replace_durably(self._record, staged.model_dump_json(indent=1).encode())
        log.info("the server has the model", url=self._endpoint.url, model=self._endpoint.openai_model)
        return self._server(staged)

    def find(self) -> StagedServer | None:
        staged = self._staged()
        return self._server(staged) if staged else None

    def stop(self, *, drain_seconds: float = 0) -> None:
        """Give the server back; it goes on running."""
        if not self._record.is_file():
            return
        if drain_seconds > 0:
            await_no_requests(self._endpoint, drain_seconds)
        with exclusive(self._slot.state):
            self._record.unlink(missing_ok=True)

    def _require_length(self, most: int | None) -> None:
        wanted = self._slot.target.limits.maximum_tokens_per_request
        if most is not None and most < wanted:
            raise Unsupported(
                f"the server takes requests of {most} tokens, and the target {self._slot.target.name} says {wanted}",
                where=self._endpoint.url,
                hint="serve it with that --max-model-len, or lower maximum_tokens_per_request of the target",
            )

    def _server(self, staged: StagedThere) -> StagedServer:
        return StagedServer(endpoint=self._endpoint, digest=staged.digest, ready_seconds=staged.ready_seconds)

    def _staged(self) -> StagedThere | None:
        return find_record(StagedThere, self._record, "not a record of a staged candidate")


def probe(place: OpenAiServer) -> str:
    """The model that it serves; what `doctor` says of it."""
    length = require_model(place.endpoint)
    context = "" if length is None else f", with requests of {length} tokens at most"
    return f"{place.endpoint.url} has the model {place.endpoint.openai_model}{context}"
