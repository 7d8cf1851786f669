# ruff: noqa: ARG002
"""A router, and its counts: a file each."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

from llm_pipeline.canary.metrics import ArmWindow, MetricSourceAdapter, MetricsWindow
from llm_pipeline.canary.router import RouterAdapter, RouterUnavailable, RouteState, TrafficRouter, remote
from llm_pipeline.config.model import AbsolutePath, Port
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.config.router_place import MetricSourceModel, RouterModel


class AcmePlace(RouterModel):
    share_unit: ClassVar[int] = 100
    left_to_its_operator: ClassVar[str] = "everything but inference"

    kind: Literal["acme"]
    file: AbsolutePath
    port: Port | None = None
    certificate: AbsolutePath | None = None

    def ports_here(self) -> tuple[int, ...]:
        return (self.port,) if self.port else ()

    def users_url(self) -> str:
        return f"https://127.0.0.1:{self.port}" if self.port else ""

    def users_certificate(self) -> str | None:
        return self.certificate

    def problems(self, policy: CanaryPolicy) -> Iterator[str]:
        if policy.steps_percent and min(policy.steps_percent) < 5:
            yield "router acme needs at least 5 % for a step"


class AcmeRouter(TrafficRouter):
    def __init__(self, place: AcmePlace) -> None:
        self._file = Path(place.file)

    def nearest(self, want: RouteState) -> RouteState:
        return want.model_copy(update={"standby": None})

    def read(self) -> tuple[RouteState, str]:
        try:
            document = json.loads(self._file.read_text())
        except FileNotFoundError as error:
            raise RouterUnavailable("there are no routes yet", where=str(self._file)) from error
        return RouteState.model_validate(document["state"]), document["revision"]

    def write(self, want: RouteState, expect: str | None) -> str:
        revision = f"{want.epoch}-{want.weights.get('green', 0)}"
        self._file.write_text(json.dumps({"state": want.model_dump(), "revision": revision}))
        return revision

    def converged(self, revision: str) -> bool | None:
        return self.read()[1] == revision


class AcmeCounts(MetricSourceModel):
    kind: Literal["acme_counts"]
    file: AbsolutePath


class Counts:
    def __init__(self, source: AcmeCounts) -> None:
        self._file = Path(source.file)

    def begin(self, seconds_ago: float = 0.0) -> float:
        return 0.0

    def window(self, since: float) -> MetricsWindow:
        arms = {slot: ArmWindow(**counts) for slot, counts in json.loads(self._file.read_text()).items()}
        return arms, since


ROUTER: RouterAdapter = remote(AcmePlace, AcmeRouter)
COUNTS = MetricSourceAdapter(config=AcmeCounts, open=lambda source, _place, _router: Counts(source))
