"""What is known of the places of a deployment, as data and as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Literal

from llm_pipeline.base.errors import ExitCode
from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.record import StandingPause
from llm_pipeline.canary.router import RouterCondition
from llm_pipeline.canary.watchdog import last_pass
from llm_pipeline.inspection.table import labelled, readable_time
from llm_pipeline.store.place_state import Pointer

ServerCondition = Literal["answers", "is running but gives no answer", "has ended", "stopped"]


class Health(StrEnum):
    """How a place is, from its users' point of view."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    DEAD = "dead"
    STOPPED = "stopped"
    EMPTY = "empty"
    ELSEWHERE = "elsewhere"


_HEALTH_WORDS: Mapping[Health, str] = {
    Health.HEALTHY: "users are served",
    Health.DEGRADED: "users are served, and something is wrong",
    Health.DEAD: "no server answers users",
    Health.STOPPED: "production was stopped; `llm-pipeline start` starts it",
    Health.EMPTY: "nothing is in production",
    Health.ELSEWHERE: "its servers are not on this host: look from there",
}


class ServerStatus(Frozen):
    """A server of a place.

    Attributes:
        slot: `blue`, `green` or `staging`.
        release_id: What it serves; the beginning of the repository's digest where no release is known for it, and
            empty where nothing runs.
        traffic_percent: Its share of the users' traffic, by what the router was told last; None where nobody knows.
        since: When it was started, UTC.
    """

    slot: str
    condition: ServerCondition
    address: str
    release_id: str = ""
    digest: str = ""
    traffic_percent: float | None = None
    since: datetime | None = None

    def __str__(self) -> str:
        share = f"{self.traffic_percent:g} % of the traffic" if self.traffic_percent is not None else ""
        since = f"since {readable_time(self.since)} UTC" if self.since else ""
        return ", ".join(filter(None, (self.condition, self.release_id, share, self.address, since)))


class RouterStatus(Frozen):
    """The router of a place.

    Attributes:
        address: Where users connect; empty where that is not ours to know.
        told_by: Who moved its traffic last.
        candidate: The slot on trial.
        standby: The slot that is asked where production's server fails.
    """

    kind: str
    condition: RouterCondition
    address: str = ""
    told_by: str = ""
    candidate: str = ""
    standby: str = ""

    def __str__(self) -> str:
        told = f"set by {self.told_by}" if self.told_by else ""
        standby = f"{self.standby} is the standby" if self.standby else ""
        return ", ".join(filter(None, (f"{self.kind} {self.condition}", self.address, standby, told)))


class PlaceStatus(Frozen):
    """What serves at one place, and what is wrong there.

    Attributes:
        model_id: Who holds the place; empty while nobody does.
        production: What the pointers call production.
        previous: What they call the release before it.
        on_trial: The release whose canary has not ended; empty for none.
        on_trial_phase: Where that canary stands.
        pause: Since when it waits, by whom and until when; None while it goes on.
        ask: A command that asks what its users ask; empty while nothing answers them here.
        guard_heard_seconds: When the guard looked at the place last, seconds ago; None for never.
        problems: What does not fit together or does not run, one sentence each.
    """

    place: str
    health: Health
    model_id: str = ""
    production: Pointer | None = None
    previous: Pointer | None = None
    on_trial: str = ""
    on_trial_phase: str = ""
    pause: StandingPause | None = None
    servers: tuple[ServerStatus, ...] = ()
    router: RouterStatus | None = None
    ask: str = ""
    guard_heard_seconds: float | None = None
    problems: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """The place and how it is, in one sentence."""
        return f"{self.place}: {self.health} ({_HEALTH_WORDS[self.health]})"

    def lines(self) -> Iterator[str]:
        """For people."""
        yield self.headline
        facts = [
            ("production", self._named(self.production)),
            ("previous", self._named(self.previous)),
            ("on trial", f"{self.on_trial} ({self.on_trial_phase})" if self.on_trial else ""),
            ("", str(self.pause) if self.pause else ""),
            *((server.slot, str(server)) for server in self.servers),
            ("router", str(self.router) if self.router else ""),
            ("ask it", self.ask),
            ("guard", last_pass(self.guard_heard_seconds) if self.router else ""),
            *(("PROBLEM", problem) for problem in self.problems),
        ]
        yield from (f"  {line}" for line in labelled(facts))

    def _named(self, pointer: Pointer | None) -> str:
        if pointer is None:
            return ""
        since = readable_time(pointer.promoted_at)
        return f"{pointer.release_id} of {self.model_id} ({pointer.recipe}) in {pointer.slot} since {since} UTC"


class DeploymentStatus(Frozen):
    """The places that were looked at."""

    deployment: str
    store: str
    places: tuple[PlaceStatus, ...]

    @property
    def exit_code(self) -> ExitCode:
        """0 where all that is in production is well, 1 where something is wrong, 5 where users get no answer."""
        found = {place.health for place in self.places}
        if found & {Health.DEAD, Health.STOPPED, Health.ELSEWHERE} or found <= {Health.EMPTY}:
            return ExitCode.INFRASTRUCTURE
        return ExitCode.NO_GO if Health.DEGRADED in found else ExitCode.GO

    def dead(self) -> Iterator[str]:
        """A sentence for each place whose users get no answer."""
        for place in self.places:
            if place.health is Health.DEAD and place.production is not None:
                yield f"{place.headline}: {place.production.release_id} of {place.model_id} is in production"

    def lines(self) -> Iterator[str]:
        """For people."""
        yield named_deployment(self.deployment, self.store)
        for place in self.places:
            yield from place.lines()


def named_deployment(name: str, store: str) -> str:
    """Which deployment was looked at; the first line of what looks at one."""
    return f"deployment {name}, store {store}"
