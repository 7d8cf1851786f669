"""A canary made of simulated requests, analysed and written as the controller does it, one artifact a step."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary import analysis
from llm_pipeline.canary.access_log import ObservedRequest
from llm_pipeline.canary.analysis import with_look
from llm_pipeline.canary.evidence import Outcome, decide
from llm_pipeline.canary.metrics import fix_thresholds, window
from llm_pipeline.canary.record import CanaryEvent, CanaryRecord, EventKind, Phase
from llm_pipeline.canary.timeline import write_timeline
from llm_pipeline.config.policy import CanaryPolicy

BEGAN_AT = 1_763_715_600.0
POLICY = CanaryPolicy(steps_percent=(5, 25, 50, 100), minimum_bake_seconds=60, minimum_requests=20)
LOOK_SECONDS = 2.0
CONTROLLER = "demo-tiny-0a1b2c3d@worker-7.412"


@dataclass
class SimulatedCanary:
    """Requests at a rate a second; from `worse_from` percent on the candidate is slower by `factor`."""

    root: Path
    rate: float = 20.0
    worse_from: float | None = None
    factor: float = 2.5
    directories: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(3)  # noqa: S311
        self._log: list[ObservedRequest] = []
        self._now = BEGAN_AT
        baseline = list(self._requests(-120.0, 0.0, 0.0))
        thresholds = fix_thresholds(baseline, POLICY)
        assert thresholds is not None
        self.record = CanaryRecord(
            release_id="r2", target="cpu", repository=ArtifactRef(kind="model_repository", digest="ab" * 32),
            stable="blue", candidate="green", phase=Phase.WARM, began_at=BEGAN_AT,
            analysis=analysis.begin(thresholds, POLICY), policy=POLICY,
        )  # fmt: skip
        self._tell(EventKind.STARTED, "candidate started in green")
        self._log += self._requests(0.0, 15.0, 0.0)
        self._now += 15.0

    def run(self) -> list[Path]:
        """Run the steps until one does not pass; the steps' artifacts."""
        for percent in POLICY.steps_percent:
            passed = self._step(percent)
            self.directories.append(self.root / f"{percent:g}")
            write_timeline(self.directories[-1], self.record, self)  # type: ignore[arg-type]
            if not passed:
                break
        return self.directories

    def recent(self, since: float, most_bytes: int) -> list[ObservedRequest]:
        """As `AccessLog.recent`: the whole canary's requests."""
        del since, most_bytes
        return self._log

    def _step(self, percent: float) -> bool:
        assert self.record.analysis is not None
        began, tests = self._now, analysis.begin_step(self.record.analysis, percent / 100)
        self._set(step_percent=percent, analysis=tests)
        self._tell(EventKind.SHIFTED, f"{percent:g} % of the traffic to green")
        while True:
            since = self._now - BEGAN_AT
            requests = list(self._requests(since, since + LOOK_SECONDS, percent))
            self._log += requests
            self._now += LOOK_SECONDS
            tests = analysis.observe(tests, window(requests, "green", tests.thresholds, began), LOOK_SECONDS)
            looks = with_look(self.record.looks, tests, at=self._now, percent=percent)
            decision = decide(tests, POLICY, self._now - began)
            self._set(analysis=tests, looks=looks, watched_seconds=self._now - began, judgement=decision.judgement)
            if decision.outcome is Outcome.CONTINUE:
                continue
            if decision.outcome is Outcome.PASS:
                self._tell(EventKind.PASSED, decision.judgement.summary, decision.judgement.verdict)
                return True
            self._tell(EventKind.ROLLING_BACK, decision.judgement.summary, decision.judgement.verdict)
            self._now += 0.3
            self._tell(EventKind.ROLLED_BACK, "all traffic is on stable")
            since = self._now - BEGAN_AT
            self._log += self._requests(since, since + 12.0, 0.0)
            return False

    def _requests(self, since: float, until: float, percent: float) -> Iterator[ObservedRequest]:
        draw = self._random
        at = since + draw.expovariate(self.rate)
        while at < until:
            mine = draw.random() < percent / 100
            bad = mine and self.worse_from is not None and percent >= self.worse_from
            failed = draw.random() < 0.002
            first = 45.0 * draw.lognormvariate(0.0, 0.35) * (self.factor if bad else 1.0)
            tokens = max(1, int(draw.gauss(40, 12)))
            stream = tokens * draw.gauss(4.0, 0.4)
            yield ObservedRequest(
                started_at=BEGAN_AT + at, arm="green" if mine else "blue", on_trial=mine, fault=failed, error=failed,
                lost=failed and draw.random() < 0.2, cancelled=False, streaming=True, first_byte_milliseconds=first,
                total_milliseconds=first + stream,
                empty=False, truncated=False,
            )  # fmt: skip
            at += draw.expovariate(self.rate)

    def _tell(self, kind: EventKind, summary: str, verdict: Verdict | None = None) -> None:
        event = CanaryEvent(
            number=len(self.record.events) + 1, at=self._now, kind=kind, percent=self.record.step_percent,
            summary=summary, by=CONTROLLER, verdict=verdict,
        )  # fmt: skip
        self._set(events=(*self.record.events, event))

    def _set(self, **changes: object) -> None:
        self.record = self.record.model_copy(update=changes)
