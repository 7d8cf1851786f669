"""An existing Triton server: the candidate is loaded into it as one more version of the model, and unloaded again.

The previous state is recorded before any change, so that another process can restore it. Models and versions that are
not ours are left alone.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

from pydantic import ValidationError

from llm_pipeline.adapters.existing_triton.adapter import ExistingServer
from llm_pipeline.adapters.existing_triton.model_control import ModelControl, ModelRefused, open_model_control
from llm_pipeline.adapters.existing_triton.model_directory import open_model_directory
from llm_pipeline.adapters.existing_triton.model_versions import ModelVersions, candidate_config, differing_fields
from llm_pipeline.artifacts.repository_layout import MODEL_NAME
from llm_pipeline.base.durable import replace_durably
from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen
from llm_pipeline.serving.control.server import Candidate, StagedServer, StagingSlot, await_no_requests
from llm_pipeline.serving.slot_fence import exclusive
from llm_pipeline.serving.triton_server import ServerFailed, SlotBusy

log = get_logger(__name__)

_ANSWER_SECONDS = 30.0


class LoadedVersion(Frozen):
    """A version that was loaded into a server, and the server's state before.

    Attributes:
        version: The candidate's version of the model.
        digest: Digest of its repository.
        others: Versions that were ready before it.
        config: The model's configuration before it; None when it was not loaded.
        ready_seconds: Time that the load took; 0 until it has ended.
    """

    version: int
    digest: str
    others: tuple[int, ...] = ()
    config: dict[str, Any] | None = None
    ready_seconds: float = 0.0


class ExistingControl:
    """Loads and unloads over the server's model control; its process is not ours to start or stop."""

    def __init__(self, place: ExistingServer, slot: StagingSlot) -> None:
        self._place = place
        self._state = slot.state
        self._record = slot.state / "existing.json"

    def start(self, candidate: Candidate, *, wait_seconds: float) -> StagedServer:
        with exclusive(self._state):
            if (loaded := self._loaded()) and (server := self._served(loaded)):
                return self._same_or_refuse(server, candidate)
            self._put_back()
            with closing(_control(self._place, wait_seconds)) as control:
                return self._load(candidate, control)

    def find(self) -> StagedServer | None:
        loaded = self._loaded()
        return self._served(loaded) if loaded else None

    def stop(self, *, drain_seconds: float = 0) -> None:
        """Unloads the version, after requests in flight are answered, also those of other versions that are served."""
        if not self._record.is_file():
            return
        with exclusive(self._state):
            if drain_seconds > 0:
                await_no_requests(self._place.endpoint, drain_seconds)
            self._put_back()

    def _load(self, candidate: Candidate, control: ModelControl) -> StagedServer:
        versions = self._versions(control)
        others = versions.ready()
        before = versions.config(others)
        if before is not None:
            self._require_shareable(candidate, dict(before), others)
        loaded = LoadedVersion(
            version=versions.free_number(),
            digest=candidate.digest,
            others=others,
            config=None if before is None else dict(before),
        )
        self._write(loaded)
        started = time.monotonic()
        try:
            versions.add(candidate.repository, digest=candidate.digest, links=candidate.links, version=loaded.version)
        except ModelRefused as refused:
            self._put_back()  # `add` left nothing of it, unless the server refused that as well
            raise ServerFailed(
                f"the server cannot load the candidate:\n{refused.message}",
                where=self._place.endpoint.url,
                hint="see that server's log",
            ) from refused
        except BaseException:
            self._put_back()
            raise
        loaded = loaded.model_copy(update={"ready_seconds": round(time.monotonic() - started, 3)})
        self._write(loaded)
        log.info("candidate loaded", url=self._place.endpoint.url, version=loaded.version, beside=str(list(others)))
        return self._staged(loaded)

    def _require_shareable(self, candidate: Candidate, config: dict[str, Any], others: tuple[int, ...]) -> None:
        where = self._place.endpoint.url
        if not self._place.shared:
            raise SlotBusy(
                f"the server serves versions {list(others)} of the model {MODEL_NAME} already",
                where=where,
                hint="unload them, or say `shared: true` if those who use them name their version",
            )
        if differing := differing_fields(candidate_config(candidate.repository, candidate.digest), config):
            raise ConfigError(
                f"versions of a model share one configuration, and {', '.join(differing)} of the candidate differ from "
                f"those of versions {list(others)}",
                where=where,
                hint="stage it on a server that does not serve that model",
            )

    def _same_or_refuse(self, server: StagedServer, candidate: Candidate) -> StagedServer:
        if server.digest == candidate.digest:
            return server
        raise SlotBusy(
            f"version {server.version} of the model {MODEL_NAME} is repository {server.digest[:12]}",
            where=self._place.endpoint.url,
            hint="stop that server first",
        )

    def _served(self, loaded: LoadedVersion) -> StagedServer | None:
        with closing(_control(self._place)) as control:
            return self._staged(loaded) if control.is_ready(MODEL_NAME, loaded.version) else None

    def _staged(self, loaded: LoadedVersion) -> StagedServer:
        return StagedServer(
            endpoint=self._place.endpoint,
            digest=loaded.digest,
            ready_seconds=loaded.ready_seconds,
            version=loaded.version,
        )

    def _put_back(self) -> None:
        """Restore what was served before. The record is removed last, so that a failed restore can be repeated."""
        loaded = self._loaded()
        if loaded is None:
            return
        try:
            with closing(_control(self._place)) as control:
                self._versions(control).restore(loaded.version, loaded.config, loaded.others)
        except ModelRefused as refused:
            raise Transient(
                f"the server does not return to what it served: {refused.message}",
                where=self._place.endpoint.url,
                hint="run the stage staging_down again",
            ) from refused
        self._record.unlink(missing_ok=True)
        log.info("candidate unloaded", url=self._place.endpoint.url, version=loaded.version)

    def _versions(self, control: ModelControl) -> ModelVersions:
        place = self._place
        directory = open_model_directory(place.repository, MODEL_NAME, link=place.link, s3_endpoint=place.s3_endpoint)
        return ModelVersions(control, directory)

    def _loaded(self) -> LoadedVersion | None:
        try:
            return LoadedVersion.model_validate_json(self._record.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise ConfigError("not a record of a loaded version", where=str(self._record)) from error

    def _write(self, loaded: LoadedVersion) -> None:
        replace_durably(self._record, loaded.model_dump_json(indent=1).encode())


def _control(place: ExistingServer, timeout_seconds: float = _ANSWER_SECONDS) -> ModelControl:
    return open_model_control(place.endpoint, place.control, timeout_seconds=timeout_seconds)


def probe(place: ExistingServer) -> str:
    """How many versions of the model it has now; what `doctor` says of it."""
    with closing(_control(place)) as control:
        versions = control.versions(MODEL_NAME)
    return f"{place.endpoint.url} lets models be loaded, and has {len(versions)} versions of {MODEL_NAME}"
