"""Releases through the stages at two servers with OpenAI's API: promotion, ways back, stop, start, guard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai_server import OpenAiDouble
from openai_site import openai_slots, released
from production_site import POLICY, Production

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.operations.guard import guard_once
from llm_pipeline.operations.served_place import place_as_it_is
from llm_pipeline.operations.status import Health, deployment_status
from llm_pipeline.operations.switching import start_production, stop

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


class OpenAiProduction(Production):
    """Blue serves release r1, green serves r2; the canary's own traffic is all there is."""

    def __init__(self, root: Path, blue: OpenAiDouble, green: OpenAiDouble) -> None:
        super().__init__(root)
        place = self.deployment.places["cpu"].model_copy(update=dict(openai_slots(blue.url, green.url)))
        self.deployment = Deployment.model_validate(self.deployment.model_copy(update={"places": {"cpu": place}}))
        assert isinstance(self.store, LocalStore)
        self.repositories = {"r1": released(self.store, root, blue), "r2": released(self.store, root, green)}
        self.policy = {**POLICY, "replay_requests_per_second": 30, "maximum_bake_seconds": 60}

    def states(self) -> dict[str, str]:
        (place,) = deployment_status(self.store, self.deployment).places
        return {server.slot: f"{server.condition} {server.release_id}".strip() for server in place.servers}

    def health(self) -> Health:
        return deployment_status(self.store, self.deployment).places[0].health

    def guarded(self) -> list[str]:
        return [str(action) for action in guard_once(self.store, self.deployment)]


@pytest.fixture
def servers() -> Iterator[tuple[OpenAiDouble, OpenAiDouble]]:
    with OpenAiDouble() as blue, OpenAiDouble(fault="drift") as green:
        yield blue, green


@pytest.fixture
def production(tmp_path: Path, servers: tuple[OpenAiDouble, OpenAiDouble]) -> Iterator[OpenAiProduction]:
    place = OpenAiProduction(tmp_path, *servers)
    try:
        yield place
    finally:
        place.down()


def test_a_release_is_promoted_taken_back_stopped_and_started(
    production: OpenAiProduction, servers: tuple[OpenAiDouble, OpenAiDouble]
) -> None:
    production.deploy_first()
    assert production.states()["blue"] == "answers r1"
    production.promote("r2")
    assert production.releases() == ("r2", "r1")
    assert production.weights() == {"green": 10_000}
    assert production.states() == {"blue": "answers r1", "green": "answers r2"}
    assert production.guarded() == []
    assert production.health() is Health.HEALTHY

    production.roll_back()
    assert production.releases()[0] == "r1"
    assert production.weights() == {"blue": 10_000}
    assert production.states() == {"blue": "answers r1", "green": "stopped"}

    here = place_as_it_is(production.store, production.deployment, "", "cpu")
    assert "the router" in stop(here, drain_seconds=0.0)
    assert production.states()["blue"] == "stopped"
    asked = len(servers[0].seen)
    assert start_production(production.store, production.deployment, "cpu").pointer.release_id == "r1"
    assert production.states()["blue"] == "answers r1"
    assert len(servers[0].seen) > asked
