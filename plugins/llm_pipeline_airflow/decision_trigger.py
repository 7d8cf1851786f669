"""Wakes a task that waits for a human when the answer is written to the store, outside of Airflow.

An answer in Airflow's form resumes the task without this trigger. One that is given by `llm-pipeline approve` or in a
terminal is only a document: nobody would tell Airflow, and the form would stay open until its timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from airflow.providers.standard.triggers.hitl import HITLTriggerEventSuccessPayload
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.hitl import update_hitl_detail_response
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async
from pydantic import Field

from llm_pipeline.base.records import Frozen
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.store import Store
from llm_pipeline.notifications.event import Event
from llm_pipeline.notifications.stream import append
from llm_pipeline.runners.stage_environment import secret_connections
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline_airflow.connections import fetch_secrets
from llm_pipeline_airflow.faults import contained
from llm_pipeline_airflow.logs import get_logger

log = get_logger(__name__)

LOOK_SECONDS = 5.0
"""Between two reads of the document: one small read for each question that is open."""


class AwaitedAnswer(Frozen):
    """Where an answer will be written, and to which question.

    Attributes:
        store: The store; the triggerer may have no other file of the release.
        document: Its name there.
        question: Fields of the document that tell this question from others of the same name.
        connections: Airflow connections that hold what the store asks for, by variable.
    """

    store: Store
    document: str
    question: dict[str, str]
    connections: dict[str, str] = Field(default={})

    def found(self, value: object) -> bool | None:
        """Whether a document approves; None while it answers nothing, or another question."""
        if not isinstance(value, dict) or any(value.get(name) != wanted for name, wanted in self.question.items()):
            return None
        return None if value.get("answer") in (None, "waiting") else value["answer"] == "approved"


def awaited_answer(deployment: Deployment, document: str, question: dict[str, str]) -> AwaitedAnswer:
    """What a trigger needs to know of an answer in a deployment's store."""
    connections = secret_connections(deployment)
    return AwaitedAnswer(store=deployment.store, document=document, question=question, connections=connections)


class DecisionTrigger(BaseTrigger):
    """Fires the event of an answered form once the store has the answer, or when the time to answer is over.

    Args:
        ti_id: The waiting task instance.
        awaited: An `AwaitedAnswer` as JSON.
        yes: The form's option for an approval.
        no: Its option for a denial, and for no answer in time.
        until: When the time is over, in ISO 8601.
        reminder: The event as JSON that tells people of the question again; empty for none.
        remind_at: When, in ISO 8601.
    """

    def __init__(
        self, *, ti_id: str, awaited: str, yes: str, no: str, until: str, reminder: str = "", remind_at: str = ""
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reminder, self.remind_at = reminder, remind_at
        self.ti_id, self.yes, self.no, self.until = str(ti_id), yes, no, until
        self._json = awaited
        self.awaited = AwaitedAnswer.model_validate_json(awaited)
        self._store: ArtifactStore | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments; see `BaseTrigger`."""
        names = ("ti_id", "yes", "no", "until", "reminder", "remind_at")
        arguments = {"awaited": self._json, **{name: getattr(self, name) for name in names}}
        return "llm_pipeline_airflow.decision_trigger.DecisionTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look every few seconds; a store that cannot be read now is asked again. People are reminded once."""
        approved, until = None, datetime.fromisoformat(self.until)
        remind_at = datetime.fromisoformat(self.remind_at) if self.reminder else until
        while approved is None and datetime.now(UTC) < until:
            await asyncio.sleep(LOOK_SECONDS)
            with contained(f"reading {self.awaited.document}") as faults:
                if self.awaited.connections:
                    await sync_to_async(fetch_secrets)(self.awaited.connections)
                approved = await asyncio.to_thread(self._look)
            for fault in faults:
                log.warning("cannot read whether the question was answered: %s", fault)
            if approved is None and remind_at <= datetime.now(UTC) < until:
                await asyncio.to_thread(self._remind)
                remind_at = until
        chosen = [self.yes if approved else self.no]
        await self._close_form(chosen)
        yield TriggerEvent(  # type: ignore[no-untyped-call]
            HITLTriggerEventSuccessPayload(
                chosen_options=chosen,
                params_input={},
                responded_by_user=None,
                responded_at=datetime.now(UTC),
                timedout=approved is None,
            )
        )

    def _look(self) -> bool | None:
        self._store = self._store or open_store(self.awaited.store)
        document = self._store.read_document(self.awaited.document)
        return self.awaited.found(document.value) if document is not None else None

    def _remind(self) -> None:
        """Write the reminder down; the guard sends it. A triggerer that starts again writes the same one."""
        with contained("reminding people of the question") as faults:
            event = Event.model_validate_json(self.reminder)
            append(open_store(self.awaited.store), [event.model_copy(update={"at": datetime.now(UTC)})])
        for fault in faults:
            log.warning("nobody is reminded of the question: %s", fault)

    async def _close_form(self, chosen: list[str]) -> None:
        """Answer the form, so that nobody is asked any more."""
        try:
            await sync_to_async(update_hitl_detail_response)(UUID(self.ti_id), chosen, {})
        except AirflowRuntimeError as error:  # somebody answered it at this very moment
            log.info("the form was not closed: %s", error)
