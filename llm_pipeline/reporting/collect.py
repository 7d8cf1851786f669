"""Collecting a release's report from the store: its record, its results, its artifacts and the pointers.

A release that stopped early, or an artifact that was removed since, makes the report shorter, never impossible:
what could not be read is named in the report's gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from llm_pipeline.accuracy.evaluation import EvaluationSummary, read_summary
from llm_pipeline.base.errors import PipelineError
from llm_pipeline.canary.timeline import read_timeline
from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.loadtest.gate import good
from llm_pipeline.loadtest.outcome import deciding_windows, read_outcome
from llm_pipeline.loadtest.records import COLUMNS, Records, read_records
from llm_pipeline.planning.memory import climbing_order
from llm_pipeline.planning.stage_cost import PlannedStage, TotalCost
from llm_pipeline.release.candidate import is_trial
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.decision import read_decisions, refusal, waiting
from llm_pipeline.release.record import ReleaseRecord, read_release_record
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.reporting.headline import (
    Results,
    decides,
    flow_order,
    read_failures,
    recipe_in_words,
    release_headline,
    released_facts,
)
from llm_pipeline.reporting.highlights import highlights
from llm_pipeline.reporting.model import (
    AccuracyStudy,
    CanaryStudy,
    Fact,
    Gate,
    LatencyCurve,
    LoadStudy,
    ReportData,
    TrafficSeries,
    stage_label,
)
from llm_pipeline.reporting.spending import read_spending
from llm_pipeline.reporting.trials import read_candidates, read_trials
from llm_pipeline.store import ArtifactStore
from llm_pipeline.store.place_state import read_place

MOST_SAMPLES = 240
"""Points of a curve, and intervals of a canary: a plot shows no more."""


def read_canary(directory: Path, target: str) -> CanaryStudy:
    """The canary of one target, from its latest step's artifact, which holds the canary so far.

    Raises:
        IntegrityError: A timeline is missing or damaged.
    """
    summary = read_timeline(directory)
    return CanaryStudy(
        target=target,
        began_at=summary.began_at,
        samples=summary.points,
        evidence=summary.evidence,
        events=summary.events,
    )


def read_load(directory: Path, target: str, policy: LoadTestPolicy) -> LoadStudy:
    """The load test of one target.

    Raises:
        IntegrityError: The outcome is missing, or it or the records are damaged.
    """
    outcome = read_outcome(directory)
    paths = [directory / f"{window.name}.csv.gz" for window in deciding_windows(outcome)]
    kept = [records for path in paths if path.exists() and len(records := read_records(path).judged)]
    if not kept:
        return LoadStudy(target=target, policy=policy, outcome=outcome)
    starts = np.cumsum([0.0, *(np.floor(part["arrives_at"][-1]) + 1.0 for part in kept)])
    columns = {name: np.concatenate([part[name] for part in kept]) for name in COLUMNS}
    columns["arrives_at"] += np.repeat(starts[:-1], list(map(len, kept)))
    records = Records(columns)
    return LoadStudy(
        target=target,
        policy=policy,
        outcome=outcome,
        curves=tuple(_curves(records)),
        series=_series(records, starts, policy),
    )


def _series(records: Records, starts: NDArray[np.float64], policy: LoadTestPolicy) -> TrafficSeries:
    """Requests by intervals of a second, or of more where there would be too many; `starts` ends with the end."""
    intervals = min(MOST_SAMPLES, int(starts[-1]))
    edges = np.linspace(0.0, starts[-1], intervals + 1)
    places = np.minimum(np.searchsorted(edges, records["arrives_at"], side="right") - 1, intervals - 1)

    def rate(weights: NDArray[Any]) -> tuple[float, ...]:
        return tuple((np.bincount(places, weights, minlength=intervals) / edges[1]).tolist())

    stalls = np.zeros(intervals)
    np.maximum.at(stalls, places, 1e3 * records["longest_gap_seconds"])
    return TrafficSeries(
        edges=tuple(edges.tolist()),
        starts=tuple(starts[:-1].tolist()),
        arrived=rate(np.ones(len(records))),
        good=rate(good(records, policy.service_level)),
        failed=rate(~records.answered),
        output_tokens=rate(np.where(records.answered, records["output_tokens"], 0)),
        longest_stall_milliseconds=tuple(stalls.tolist()),
    )


def _curves(records: Records) -> Iterator[LatencyCurve]:
    """The empirical distributions; requests without an answer keep them below one."""
    for name, seconds in (
        ("first token", records["first_token_seconds"]),
        ("end to end", records["total_seconds"]),
    ):
        values = 1e3 * np.sort(seconds[records.answered & (seconds > 0.0)])
        if values.size:
            picks = np.unique(np.linspace(0, values.size - 1, MOST_SAMPLES).astype(int))
            shares = (picks + 1) / len(records)
            yield LatencyCurve(name=name, milliseconds=tuple(values[picks].tolist()), shares=tuple(shares.tolist()))


PartT = TypeVar("PartT")
PlanT = TypeVar("PlanT", bound=BaseModel)


def collect(store: ArtifactStore, release_id: str) -> ReportData:
    """Everything that the report of a release shows.

    Raises:
        ConfigError: There is no such release.
        IntegrityError: The release's record cannot be understood.
    """
    return _Collector(store, read_release_record(store, release_id)).report()


class _Collector:
    """Reads one release; remembers what could not be read."""

    def __init__(self, store: ArtifactStore, record: ReleaseRecord) -> None:
        self._store = store
        self._record = record
        self._flow = ReleaseProgress(store, record)
        self._gaps: list[str] = []
        self._results = self._read_results()

    def report(self) -> ReportData:
        record, results = self._record, self._results
        targets = [target.name for target in record.release.targets]
        pointers = {name: read_place(self._store, record.place_of(name)).of(record.model.id) for name in targets}
        loads = tuple(filter(None, map(self._load, targets)))
        canaries = tuple(filter(None, map(self._canary, targets)))
        failures = read_failures(self._store, record.release_id, results, self._gaps)
        before = self._summary("baseline", "")
        decisions = self._try("decisions", lambda: read_decisions(self._store, record.release_id))
        question = refusal(decisions or (), self._flow.resolved_at) or waiting(decisions or (), self._flow.resolved_at)
        accuracy = self._accuracy()
        trials = read_trials(
            record,
            results,
            accuracy,
            failures,
            summary=self._summary,
            passed_over=lambda recipe: self._try(f"the ladder of {recipe}", lambda: self._flow.passed_over(recipe)),
        )
        tried = self._try("the candidates", lambda: read_candidates(self._flow, results)) or ()
        return ReportData(
            release_id=record.release_id,
            title=record.release.name,
            model_id=record.model.id,
            recipe=recipe_in_words(record, results),
            description=record.release.description,
            collected_at=datetime.now(UTC),
            headline=release_headline(record, results, pointers, failures, canaries, question=question),
            facts=(*released_facts(record, results, pointers), *self._budget()),
            highlights=highlights(trials, accuracy, loads, canaries, candidates=tried),
            failures=failures,
            gates=self._gates(),
            margin=record.release.policy.accuracy.margin,
            confidence=record.release.policy.accuracy.confidence,
            trials=trials,
            candidates=tried,
            accuracy=accuracy,
            loads=loads,
            canaries=canaries,
            stages=tuple(_by_start(results)),
            spending=read_spending(record, _by_start(results), self._planned("stages", PlannedStage)),
            datasets=record.datasets,
            evaluation_data=before.data if before else (),
            gaps=tuple(self._gaps),
        )

    def _budget(self) -> tuple[Fact, ...]:
        """What the release may take, beside what it was planned to; nothing for one without a budget."""
        if not (budget := self._record.budget):
            return ()
        planned = self._planned("total", TotalCost)
        return tuple(
            Fact(label="Budget", value=f"{budget.in_words(total.currency)}; planned {total.in_words(total.currency)}")
            for total in planned
        )

    def _read_results(self) -> Results:
        results: dict[tuple[str, str], StageResult] = {}
        for name in self._store.list_documents(f"releases/{self._record.release_id}/results"):
            document = self._store.read_document(name)
            if document is None:
                continue
            try:
                result = StageResult.model_validate(document.value)
            except ValueError as error:
                self._gaps.append(f"{name} is not a stage result: {error}")
                continue
            results[result.stage, result.subject] = result
        return results

    def _try(self, what: str, read: Callable[[], PartT]) -> PartT | None:
        """A part of the report, or None with its error among the gaps."""
        try:
            return read()
        except (PipelineError, OSError, ValueError) as error:
            self._gaps.append(f"{what}: {error}")
            return None

    def _directory(self, stage: str, subject: str, kind: str) -> Path | None:
        result = self._results.get((stage, subject))
        ref = next((ref for ref in result.artifacts.values() if ref.kind == kind), None) if result else None
        return (
            None if ref is None else self._try(f"{kind} of {stage} {subject}".rstrip(), lambda: self._store.fetch(ref))
        )

    def _summary(self, stage: str, subject: str) -> EvaluationSummary | None:
        directory = self._directory(stage, subject, "evaluation")
        name = f"summary of {stage} {subject}".rstrip()
        return None if directory is None else self._try(name, lambda: read_summary(directory))

    def _planned(self, part: str, model: type[PlanT]) -> tuple[PlanT, ...]:
        """What the plan said of each target, of each stage, or of all together; nothing without a plan."""
        document = self._store.read_document(f"releases/{self._record.release_id}/plan.json")
        if document is None:
            return ()
        found: Any = document.value.get(part) or ()
        parts = [found] if isinstance(found, dict) else found
        return self._try(f"the plan's {part}", lambda: tuple(map(model.model_validate, parts))) or ()

    def _by_flow(self) -> list[StageResult]:
        """In the order of the flow; recipes as on the ladder, canary steps as they were taken."""
        recipes = climbing_order(self._record.release, self._record.facts)

        def place(result: StageResult) -> tuple[int, int, datetime, str]:
            listed = recipes.index(result.subject) if result.subject in recipes else len(recipes)
            return flow_order(result.stage), listed, result.timings.started_at, result.subject

        return sorted(self._results.values(), key=place)

    def _gates(self) -> tuple[Gate, ...]:
        return tuple(
            Gate(
                name=stage_label(result),
                decides=decides(result, self._results),
                judgement=result.judgement,
            )
            for result in self._by_flow()
            if result.judgement is not None
        )

    def _accuracy(self) -> tuple[AccuracyStudy, ...]:
        policy = self._record.release.policy
        gates = {"accuracy": ("", policy.accuracy), "served_accuracy": ("served on ", policy.served_accuracy)}
        studies = []
        for result in (one for one in self._by_flow() if not is_trial(one.stage, one.subject)):
            prefix, own = gates.get(result.stage, ("", None))
            summary = self._summary(result.stage, result.subject) if own else None
            if own and summary and summary.comparison:
                study = AccuracyStudy(
                    name=f"{prefix}{result.subject}",
                    verdict=result.judgement.verdict if result.judgement else None,
                    margin=own.margin,
                    task_margin=own.task_margin,
                    comparison=summary.comparison,
                )
                studies.append(study)
        return tuple(studies)

    def _load(self, target: str) -> LoadStudy | None:
        directory = self._directory("load_test", target, "load_test")
        if directory is None:
            return None
        return self._try(
            f"load test on {target}", lambda: read_load(directory, target, self._record.release.policy.load_test)
        )

    def _canary(self, target: str) -> CanaryStudy | None:
        steps = [r for r in _by_start(self._results) if r.stage == "canary" and r.subject.split(":")[0] == target]
        directory = self._directory("canary", steps[-1].subject, "canary") if steps else None
        return None if directory is None else self._try(f"canary on {target}", lambda: read_canary(directory, target))


def _by_start(results: Results) -> list[StageResult]:
    return sorted(results.values(), key=lambda result: (result.timings.started_at, flow_order(result.stage)))
