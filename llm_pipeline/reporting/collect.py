"""Collecting a release's report from the store: its record, its results, its artifacts and the pointers.

A release that stopped early, or an artifact that was removed since, makes the report shorter, never impossible:
what could not be read is named in the report's gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from llm_pipeline.accuracy.items import ScoredItem, read_items
from llm_pipeline.accuracy.paired import compare
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.errors import PipelineError
from llm_pipeline.release_record import ReleaseRecord, read_record
from llm_pipeline.reporting.headline import Results, chosen_recipe, decides, release_headline, released_facts
from llm_pipeline.reporting.highlights import highlights
from llm_pipeline.reporting.model import (
    AccuracyStudy,
    CanaryStudy,
    EngineSpeed,
    Gate,
    LoadStudy,
    ReportData,
    StageRun,
    Variant,
)
from llm_pipeline.reporting.traffic import read_canary, read_load
from llm_pipeline.stages.contract import ArtifactRef, StageResult
from llm_pipeline.stages.registry import STAGE_NAMES
from llm_pipeline.store import ArtifactStore
from llm_pipeline.store.pointers import read_pointers

PartT = TypeVar("PartT")

_ORDER: Mapping[str, int] = {name: index for index, name in enumerate(STAGE_NAMES)}


def collect(store: ArtifactStore, release_id: str) -> ReportData:
    """Everything that the report of a release shows.

    Raises:
        ConfigError: There is no such release.
        IntegrityError: The release's record cannot be understood.
    """
    return _Collector(store, read_record(store, release_id)).report()


class _Collector:
    """Reads one release; remembers what could not be read."""

    def __init__(self, store: ArtifactStore, record: ReleaseRecord) -> None:
        self._store = store
        self._record = record
        self._gaps: list[str] = []
        self._results = self._read_results()

    def report(self) -> ReportData:
        record, results = self._record, self._results
        targets = [target.name for target in record.release.targets]
        pointers = {name: read_pointers(self._store, record.model.id, name)[0] for name in targets}
        loads, canaries = self._loads(targets), self._canaries(targets)
        accuracy, variants = self._accuracy(), self._variants()
        return ReportData(
            release_id=record.release_id,
            title=record.release.name,
            description=record.release.description,
            collected_at=datetime.now(UTC),
            headline=release_headline(record, results, pointers),
            facts=released_facts(record, results, pointers),
            highlights=highlights(variants, accuracy, loads, canaries),
            gates=self._gates(),
            variants=variants,
            accuracy=accuracy,
            loads=loads,
            canaries=canaries,
            stages=tuple(_stage_run(result) for result in _by_start(results)),
            datasets=record.datasets,
            gaps=tuple(self._gaps),
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

    def _items(self, stage: str, subject: str) -> list[ScoredItem] | None:
        directory = self._directory(stage, subject, "evaluation")
        return None if directory is None else self._try(f"items of {stage} {subject}", lambda: read_items(directory))

    def _gates(self) -> tuple[Gate, ...]:
        return tuple(
            Gate(name=_label(result), decides=decides(result, self._results), judgement=result.judgement)
            for result in _by_flow(self._results)
            if result.judgement is not None
        )

    def _accuracy(self) -> tuple[AccuracyStudy, ...]:
        baseline = self._items("baseline", "")
        if baseline is None:
            return ()
        policy = self._record.release.policy
        studies = []
        for result in _by_flow(self._results):
            if result.stage == "accuracy":
                studies.append(self._study(result, result.subject, baseline, policy.accuracy))
            elif result.stage == "served_accuracy":
                name = f"served on {result.subject}"
                studies.append(self._study(result, name, baseline, policy.served_accuracy))
        return tuple(study for study in studies if study is not None)

    def _study(
        self,
        result: StageResult,
        name: str,
        baseline: list[ScoredItem],
        policy: AccuracyPolicy,
    ) -> AccuracyStudy | None:
        items = self._items(result.stage, result.subject)
        if items is None:
            return None
        tasks = {item.task for item in items} if result.stage == "served_accuracy" else None
        comparison = self._try(f"accuracy of {name}", lambda: compare(baseline, items, policy.confidence, tasks))
        if comparison is None:
            return None
        return AccuracyStudy(
            name=name,
            verdict=result.judgement.verdict if result.judgement else None,
            margin=policy.margin,
            task_margin=policy.task_margin,
            comparison=comparison,
        )

    def _variants(self) -> tuple[Variant, ...]:
        chosen = chosen_recipe(self._results)
        variants = []
        download = self._results.get(("download", ""))
        if download and "checkpoint" in download.artifacts:
            size = self._size(download.artifacts["checkpoint"])
            variants += [Variant(name="baseline", bytes=size, is_baseline=True)] if size else []
        for recipe in self._record.release.recipes:
            quantized = self._results.get(("quantize", recipe.name))
            size = self._size(quantized.artifacts.get("checkpoint")) if quantized else None
            if size is None:
                continue
            gate = self._results.get(("accuracy", recipe.name))
            verdict = gate.judgement.verdict if gate and gate.judgement else None
            is_chosen = recipe.name == chosen
            engines = self._speeds() if is_chosen else ()
            variants.append(Variant(name=recipe.name, bytes=size, verdict=verdict, chosen=is_chosen, engines=engines))
        return tuple(variants)

    def _size(self, ref: ArtifactRef | None) -> int | None:
        return None if ref is None else self._try(f"size of {ref}", lambda: self._store.size(ref))

    def _speeds(self) -> tuple[EngineSpeed, ...]:
        speeds = []
        for result in _by_flow(self._results):
            speed = result.metrics.get("output_tokens_per_second")
            if result.stage == "load_test" and isinstance(speed, int | float):
                speeds.append(EngineSpeed(target=result.subject, tokens_per_second=float(speed)))
        return tuple(speeds)

    def _loads(self, targets: list[str]) -> tuple[LoadStudy, ...]:
        return tuple(study for target in targets if (study := self._load(target)) is not None)

    def _load(self, target: str) -> LoadStudy | None:
        directory = self._directory("load_test", target, "load_test")
        if directory is None:
            return None
        return self._try(f"load test on {target}", lambda: read_load(directory, target, self._record.release))

    def _canaries(self, targets: list[str]) -> tuple[CanaryStudy, ...]:
        return tuple(study for target in targets if (study := self._canary(target)) is not None)

    def _canary(self, target: str) -> CanaryStudy | None:
        steps = [r for r in _by_start(self._results) if r.stage == "canary" and r.subject.split(":")[0] == target]
        directory = self._directory("canary", steps[-1].subject, "canary") if steps else None
        return None if directory is None else self._try(f"canary on {target}", lambda: read_canary(directory, target))


def _by_flow(results: Results) -> list[StageResult]:
    """In the order of the flow; within a stage by its start, so that canary steps stay in order."""
    return sorted(results.values(), key=lambda r: (_ORDER.get(r.stage, len(_ORDER)), r.timings.started_at, r.subject))


def _by_start(results: Results) -> list[StageResult]:
    return sorted(results.values(), key=lambda result: (result.timings.started_at, _ORDER.get(result.stage, 99)))


def _label(result: StageResult) -> str:
    stage = result.stage.replace("_", " ")
    return f"{stage}, {result.subject}" if result.subject else stage


def _stage_run(result: StageResult) -> StageRun:
    return StageRun(
        stage=result.stage,
        subject=result.subject,
        started_at=result.timings.started_at,
        total_seconds=result.timings.total_seconds,
        tool_seconds=result.timings.tool_seconds,
        reused=result.reused,
        key=result.key,
        verdict=result.judgement.verdict if result.judgement else None,
        artifacts=result.artifacts,
        tools=result.tools,
    )
