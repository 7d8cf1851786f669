"""What a run without Airflow tells of its release."""

from __future__ import annotations

import uuid
from datetime import datetime
from itertools import count

from llm_pipeline.base.errors import PipelineError
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.notifications import wants_stages
from llm_pipeline.notifications import happened
from llm_pipeline.notifications.channel import no_connections
from llm_pipeline.notifications.event import Event, Origin
from llm_pipeline.notifications.outbox import tell
from llm_pipeline.release.contract import StageResult
from llm_pipeline.store.artifact_store import ArtifactStore


class LocalTeller:
    """Tells each thing that happens to one release; nothing that goes wrong there reaches the run.

    Args:
        store: The deployment's.
        deployment: Who is to be told.
        release: Name of the release config; `release_id` is set once the release has its id.
    """

    def __init__(self, store: ArtifactStore, deployment: Deployment, release: str) -> None:
        self.release_id = release
        self._store = store
        self._deployment = deployment
        self._run = uuid.uuid4().hex[:12]
        self._numbers = count(1)

    def ended(self, result: StageResult, place: str = "") -> None:
        """A stage came to a result; with the place whose canary it drove, if it did."""
        events = [happened.judged(self._origin, result)]
        if wants_stages(self._deployment.notifications):
            events.append(happened.ended(self._origin, result))
        self._tell(*events, canaries={place: self.release_id} if place else {})

    def failed(
        self,
        stage: str,
        subject: str,
        error: PipelineError,
        *,
        tried_again: bool = False,
        began: datetime | None = None,
    ) -> None:
        """A stage, or the release as a whole where no stage is named, ended with an error."""
        event = happened.failed(
            self._origin, stage, subject, error, key=self._key(), tried_again=tried_again, began=began
        )
        self._tell(event)

    def asked(self, question: str, action: str, subject: str) -> None:
        """Somebody is asked on the terminal, or nobody can be."""
        self._tell(happened.asked(self._origin, question, key=self._key(), subject=subject, until=None, action=action))

    def answered(self, question: str, answer: str, by: str, subject: str) -> None:
        """A question has its answer."""
        event = happened.answered(self._origin, question, key=self._key(), subject=subject, answer=answer, by=by)
        self._tell(event)

    @property
    def _origin(self) -> Origin:
        return Origin(self._deployment.name, self.release_id)

    def _key(self) -> str:
        return f"{self._run}/{next(self._numbers)}"

    def _tell(self, *told: Event | None, canaries: dict[str, str] | None = None) -> None:
        events = [event for event in told if event is not None]
        if events or canaries:
            tell(self._store, self._deployment, no_connections, events=events, canaries=canaries)
