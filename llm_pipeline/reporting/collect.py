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
from llm_pipeline.canary.timeline import CanarySummary, read_timeline
from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.loadtest.gate import good
from llm_pipeline.loadtest.outcome import deciding_windows, read_outcome
from llm_pipeline.loadtest.records import COLUMNS, Records, read_records
from llm_pipeline.planning.memory import climbing_order
from llm_pipeline.planning.stage_cost import PlannedStage, TotalCost
from llm_pipeline.release.candidate import Candidate, candidates, is_trial, target_of
from llm_pipeline.release.contract import StageFailure, StageResult
from llm_pipeline.release.decision import read_decisions, refusal, waiting
from llm_pipeline.release.record import ReleaseRecord, read_release_record
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.reporting.headline import (
    chosen_recipes,
    decides,
    failure_in_words,
    flow_order,
    recipe_in_words,
    release_headline,
    released_facts,
    stage_label,
    stops,
)
from llm_pipeline.reporting.highlights import highlights
from llm_pipeline.reporting.model import (
    AccuracyStudy,
    CandidateRow,
    Fact,
    Gate,
    LatencyCurve,
    LoadStudy,
    ReportData,
    TrafficSeries,
    Trial,
)
from llm_pipeline.reporting.spending import read_spending
from llm_pipeline.store import ArtifactStore
from llm_pipeline.store.place_state import read_place

MOST_SAMPLES = 240
"""Points of a curve, and intervals of a load test: a plot shows no more."""


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
    for name, seconds in (("first token", records["first_token_seconds"]), ("end to end", records["total_seconds"])):
        values = 1e3 * np.sort(seconds[records.answered & (seconds > 0.0)])
        if values.size:
            picks = np.unique(np.linspace(0, values.size - 1, MOST_SAMPLES).astype(int))
            shares = (picks + 1) / len(records)
            yield LatencyCurve(name=name, milliseconds=tuple(values[picks].tolist()), shares=tuple(shares.tolist()))


PartT = TypeVar("PartT")
ModelT = TypeVar("ModelT", bound=BaseModel)


def collect(store: ArtifactStore, release_id: str) -> ReportData:
    """Everything that the report of a release shows.

    Raises:
        ConfigError: There is no such release.
        IntegrityError: The release's record cannot be understood.
    """
    return _Collector(store, read_release_record(store, release_id)).report()


def read_failures(store: ArtifactStore, release_id: str, gaps: list[str]) -> tuple[StageFailure, ...]:
    """Every stage that ended with an error, in the order of the flow; what cannot be read is added to `gaps`.

    An earlier report's error is left out: the report that is being made now stands for it.
    """
    found, damaged = store.readable_as(f"releases/{release_id}/failures", StageFailure)
    gaps += [one.problem for one in damaged]
    failures = [failure for failure in found.values() if failure.stage != "report"]
    return tuple(sorted(failures, key=lambda failed: (flow_order(failed.stage), failed.subject)))


class _Collector:
    """Reads one release; remembers what could not be read."""

    def __init__(self, store: ArtifactStore, record: ReleaseRecord) -> None:
        self._store, self._record, self._release = store, record, record.release
        self._flow = ReleaseProgress(store, record)
        found, damaged = self._flow.readable_results()
        self._gaps = [one.problem for one in damaged]
        self._summaries: dict[tuple[str, str], EvaluationSummary | None] = {}
        by_start = sorted(found.values(), key=lambda one: (one.timings.started_at, flow_order(one.stage)))
        self._results = {(result.stage, result.subject): result for result in by_start}
        self._failures = read_failures(store, record.release_id, self._gaps)
        self._recipes = climbing_order(record.release, record.facts)

    def report(self) -> ReportData:
        record, results = self._record, self._results
        failures = tuple(failure for failure in self._failures if stops(failure, results))
        asides = tuple(failure for failure in self._failures if failure not in failures)
        targets = [target.name for target in self._release.targets]
        pointers = {name: read_place(self._store, record.place_of(name)).of(record.model.id) for name in targets}
        loads = tuple(filter(None, map(self._load, targets)))
        canaries = {name: canary for name in targets if (canary := self._canary(name))}
        before = self._summary("baseline", "")
        decisions = self._try("decisions", lambda: read_decisions(self._store, record.release_id)) or ()
        question = refusal(decisions, self._flow.resolved_at) or waiting(decisions, self._flow.resolved_at)
        accuracy, trials = tuple(self._accuracy()), tuple(map(self._trial, self._recipes))
        tried = self._try("the candidates", lambda: tuple(self._candidates())) or ()
        stages = tuple(results.values())
        return ReportData(
            release_id=record.release_id,
            title=self._release.name,
            model_id=record.model.id,
            recipe=recipe_in_words(record, results),
            description=self._release.description,
            collected_at=datetime.now(UTC),
            headline=release_headline(
                record, results, pointers, canaries, failures=failures, asides=asides, question=question
            ),
            facts=(*released_facts(record, results, pointers), *self._budget()),
            highlights=highlights(trials, accuracy, loads, canaries, candidates=tried),
            failures=failures,
            asides=asides,
            gates=self._gates(),
            margin=self._release.policy.accuracy.margin,
            confidence=self._release.policy.accuracy.confidence,
            trials=trials,
            candidates=tried,
            accuracy=accuracy,
            loads=loads,
            canaries=canaries,
            stages=stages,
            spending=read_spending(record, stages, self._planned("stages", PlannedStage)),
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

    def _try(self, what: str, read: Callable[[], PartT]) -> PartT | None:
        """A part of the report, or None with its error among the gaps."""
        try:
            return read()
        except (PipelineError, OSError, ValueError) as error:
            self._gaps.append(f"{what}: {error}")
            return None

    def _read(self, stage: str, subject: str, kind: str, read: Callable[[Path], PartT]) -> PartT | None:
        """What is read of a stage's artifact of some kind; None without one."""
        result = self._results.get((stage, subject))
        ref = next((ref for ref in result.artifacts.values() if ref.kind == kind), None) if result else None
        what = f"{kind} of {stage} {subject}".rstrip()
        return None if ref is None else self._try(what, lambda: read(self._store.fetch(ref)))

    def _summary(self, stage: str, subject: str) -> EvaluationSummary | None:
        """The summary of an evaluation, which several parts of the report show: read once, and missed once."""
        if (stage, subject) not in self._summaries:
            self._summaries[stage, subject] = self._read(stage, subject, "evaluation", read_summary)
        return self._summaries[stage, subject]

    def _planned(self, part: str, model: type[ModelT]) -> tuple[ModelT, ...]:
        """What the plan said of each target, of each stage, or of all together; nothing without a plan."""
        document = self._store.read_document(f"releases/{self._record.release_id}/plan.json")
        if document is None:
            return ()
        found: Any = document.value.get(part) or ()
        parts = [found] if isinstance(found, dict) else found
        return self._try(f"the plan's {part}", lambda: tuple(map(model.model_validate, parts))) or ()

    def _by_flow(self) -> list[StageResult]:
        """In the order of the flow; recipes as on the ladder, canary steps as they were taken."""

        def place(result: StageResult) -> tuple[int, int, datetime, str]:
            recipes, subject = self._recipes, result.subject
            listed = recipes.index(subject) if subject in recipes else len(recipes)
            return flow_order(result.stage), listed, result.timings.started_at, subject

        return sorted(self._results.values(), key=place)

    def _gates(self) -> tuple[Gate, ...]:
        return tuple(
            Gate(name=stage_label(one), decides=decides(one, self._results), judgement=one.judgement)
            for one in self._by_flow()
            if one.judgement is not None
        )

    def _accuracy(self) -> Iterator[AccuracyStudy]:
        policy = self._release.policy
        gates = {"accuracy": ("", policy.accuracy), "served_accuracy": ("served on ", policy.served_accuracy)}
        for result in self._by_flow():
            if result.stage not in gates or is_trial(result.stage, result.subject):
                continue
            (prefix, own), summary = gates[result.stage], self._summary(result.stage, result.subject)
            if summary and summary.comparison and result.judgement:
                yield AccuracyStudy(
                    name=f"{prefix}{result.subject}",
                    judgement=result.judgement,
                    margin=own.margin,
                    task_margin=own.task_margin,
                    comparison=summary.comparison,
                )

    def _trial(self, name: str) -> Trial:
        """A recipe as it was tried, or why it was not."""
        gate, quantized = self._results.get(("accuracy", name)), self._results.get(("quantize", name))
        made = quantized.metrics if quantized else {}
        failed = next((f for f in self._failures if f.subject == name and f.stage in ("quantize", "accuracy")), None)
        if failed:  # of the last time that it was tried
            outcome = failure_in_words(failed)
        elif gate or quantized:
            outcome = "" if gate else "quantized, not judged yet"
        else:
            why = self._try(f"the ladder of {name}", lambda: self._flow.passed_over(name))
            outcome = f"skipped: {why}" if why else "not run"
        found = {
            "name": name,
            "weights": self._release.recipe(name).weights,
            "verdict": gate.judgement.verdict if gate and gate.judgement else None,
            "outcome": outcome,
            "chosen_on": tuple(target for target, taken in chosen_recipes(self._results).items() if taken == name),
            "evaluation": self._summary("accuracy", name),
            **{metric: made.get(metric) for metric in ("bytes", "size_ratio", "effective_bits")},
        }
        return Trial.model_validate(found)

    def _candidates(self) -> Iterator[CandidateRow]:
        """Each that was tried, as they were tried; none where the choice is by size."""
        if self._release.ladder.objective == "size":
            return
        for candidate in (Candidate.of(one) for group in candidates(self._release, self._recipes) for one in group):
            if (trial := self._flow.trial(candidate)) is None:
                continue
            choice = self._results.get(("choose", candidate.target))
            load = self._results.get(("load_test", candidate.subject))
            chosen, measured = choice.metrics if choice else {}, load.metrics if load else {}
            row = {
                "target": candidate.target,
                "name": candidate.in_words,
                "chosen": (chosen.get("recipe"), chosen.get("variant") or "") == candidate[1:],
                "verdict": trial.verdict,
                "outcome": trial.summary,
                "cost": trial.cost,
                "tokens_per_second": measured.get("output_tokens_per_second"),
                "gpu_memory_bytes": measured.get("gpu_memory_bytes"),
                "acceptance_length": measured.get("acceptance_length"),
            }
            yield CandidateRow.model_validate(row)

    def _load(self, target: str) -> LoadStudy | None:
        policy = self._release.policy.load_test
        return self._read("load_test", target, "load_test", lambda directory: read_load(directory, target, policy))

    def _canary(self, target: str) -> CanarySummary | None:
        """From the latest step's artifact, which holds the canary so far."""
        steps = [r for r in self._results.values() if r.stage == "canary" and target_of(r.subject) == target]
        return self._read("canary", steps[-1].subject, "canary", read_timeline) if steps else None
