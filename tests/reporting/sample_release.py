"""A release written to a real local store: the shapes that the stages leave behind, without running them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from load_sample import POLICY as LOAD_POLICY
from load_sample import sample_load_test
from place_here import serve
from resolved_release import deployment_below, pinned, record_of, tiny_release

from llm_pipeline.accuracy.evaluation import DataRead, summarise, write_evaluation
from llm_pipeline.accuracy.gate import judge_look
from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.errors import PipelineError
from llm_pipeline.base.records import ArtifactRef, Metric
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.canary.record import CanaryEvent, EventKind
from llm_pipeline.canary.timeline import SUMMARY_FILE, ArmPoint, CanarySummary, TimelinePoint
from llm_pipeline.config.policy import Policy
from llm_pipeline.config.quantization import QuantizationRecipe, WeightFormat
from llm_pipeline.config.release import Approval, Evaluation, Ladder, ModelSource
from llm_pipeline.release.choice import RecipeAttempt, choose_recipe
from llm_pipeline.release.contract import StageFailure, StageResult, Timings
from llm_pipeline.release.execute import KeyContent, StageRecord, failure_name, results_name, stage_record_name
from llm_pipeline.release.record import release_record_name
from llm_pipeline.reporting.collect import collect
from llm_pipeline.reporting.model import Headline, ReportData
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.lease import Lease
from llm_pipeline.store.place_state import Pointer

POLICY = Policy(name="strict", load_test=LOAD_POLICY)
RELEASE = "demo-tiny-0a1b2c3d-9f8e7d6c"
START = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)
CONTROLLER = "r@host.1"
TASKS = {"arithmetic": 900, "reading": 700, "recall": 500}
RECIPES = {
    "int4_naive": (0.6, 12e4),
    "int4_awq": (0.035, 12.5e4),
    "fp8": (0.004, 21e4),
    "int8_smoothquant": (0.012, 21.4e4),
}
"""By recipe, the cheapest first: what it loses, and the bytes of its checkpoint."""


class SampleRelease:
    """Writes one release stage by stage; stop after any of them."""

    def __init__(
        self,
        root: Path,
        *,
        description: str = "Nightly rebuild of the demo model",
        seed: int = 7,
        strategy: Literal["climb", "every"] = "every",
        store: ArtifactStore | None = None,
    ) -> None:
        self.store = store or LocalStore(f"file://{root / 'store'}")
        self._scratch = root / "scratch"
        self._random = random.Random(seed)  # noqa: S311
        self._clock = START
        self.baseline: list[ScoredItem] = []
        self.write_record(description, strategy)

    def write_record(self, description: str, strategy: Literal["climb", "every"]) -> None:
        release = tiny_release(
            name="demo-tiny",
            description=description,
            model=ModelSource(id="example/tiny-llama"),
            recipes=tuple(QuantizationRecipe(name=name, weights=_weights(name)) for name in RECIPES),
            ladder=Ladder(strategy=strategy),
            policy=POLICY,
            evaluation=Evaluation(tasks=tuple(TASKS), served_tasks=("arithmetic",)),
            approval=Approval(),
        )
        record = record_of(
            deployment_below(Path("/"), name="laptop", store=self.store.uri),
            RELEASE,
            release=release,
            model=pinned("example/tiny-llama", license="apache-2.0"),
            datasets={"tasks": ArtifactRef(kind="dataset", digest="ab" * 32)},
            ladders={"cpu": tuple(RECIPES)},
            created_at=START,
        )
        self.store.write_document(release_record_name(RELEASE), record.model_dump(mode="json"), None)

    def add(
        self, stage: str, subject: str = "", seconds: float = 5.0, *, wait: float = 1.0, **fields: Any
    ) -> StageResult:
        self._clock += timedelta(seconds=wait)
        result = StageResult(
            release_id=RELEASE,
            stage=stage,
            subject=subject,
            key=f"{abs(hash((stage, subject))):064x}"[-64:],
            tools={"nvidia-modelopt": "0.47.0"} if stage == "quantize" else {},
            timings=Timings(started_at=self._clock, total_seconds=seconds),
            **fields,
        )
        self.store.write_document(results_name(RELEASE, stage, subject), result.model_dump(mode="json"), None)
        self._clock += timedelta(seconds=seconds)
        return result

    def publish(self, kind: str, files: dict[str, bytes]) -> ArtifactRef:
        directory = self._scratch / f"{kind}-{self._random.random()}"
        directory.mkdir(parents=True)
        for name, data in files.items():
            (directory / name).write_bytes(data)
        return self.store.publish(kind, directory)

    def publish_items(self, items: Sequence[ScoredItem], **summary: object) -> ArtifactRef:
        directory = self._scratch / f"items-{self._random.random()}"
        write_evaluation(directory, items, summarise(items).model_copy(update=summary))
        return self.store.publish("evaluation", directory)

    def scored(self, loss: float, tasks: Sequence[str] = tuple(TASKS)) -> list[ScoredItem]:
        """The baseline's items with a share of the right ones lost, and a third as many gained."""
        items = []
        for item in (item for item in self.baseline if item.task in tasks):
            change = self._random.random() < (1.4 * loss if item.score else 1.2 * loss)
            items.append(item.model_copy(update={"score": 1.0 - (item.score or 0.0) if change else item.score}))
        return items

    def measure_baseline(self) -> None:
        self.add("resolve", seconds=1.2)
        checkpoint = self.publish("checkpoint", {"model.safetensors": b"0" * 400_000})
        held = self.publish("eval_data", {"data_sets.json": b"{}"})
        self.add("eval_data", seconds=0.4, artifacts={"eval_data": held})
        self.add("download", seconds=6.0, artifacts={"checkpoint": checkpoint})
        for task, count in TASKS.items():
            for number in range(count):
                score, generative = float(self._random.random() < 0.82), task == "arithmetic"
                names = {"task": task, "item_id": number, "fingerprint": f"{task}{number}"}
                self.baseline.append(ScoredItem(**names, score=score, generative=generative))
        read = DataRead(name="openai/gsm8k (main)", repository="openai/gsm8k", commit="e1" * 20, files=2)
        evaluation = self.publish_items(self.baseline, data=(read,))
        self.add("baseline", seconds=31.0, artifacts={"evaluation": evaluation}, reused=True)

    def try_recipes(self, recipes: Sequence[str] = tuple(RECIPES), *, choose: bool = True) -> None:
        attempts = []
        for recipe in recipes:
            loss, size = RECIPES[recipe]
            weights = {"model.safetensors": bytes([len(recipe)]) * int(size)}
            checkpoint = self.publish("checkpoint", weights)
            metrics: dict[str, Metric] = {"effective_bits": 4.5, "bytes": int(size), "size_ratio": size / 400_000}
            self.add("quantize", recipe, 14.0, artifacts={"checkpoint": checkpoint}, metrics=metrics)
            items = self.scored(loss if recipe != "fp8" else 0.0008)
            looks = (judge_look(self.baseline, items, look, 5, POLICY.accuracy) for look in (4, 5))
            judgement, comparison = next(filter(None, looks))
            evaluation = self.publish_items(items, look=4, looks=5, planned=len(items) * 5 // 4, comparison=comparison)
            self.add("accuracy", recipe, 28.0, artifacts={"evaluation": evaluation}, judgement=judgement)
            attempts.append(
                RecipeAttempt(recipe=recipe, verdict=judgement.verdict, bytes=int(size), summary=judgement.summary)
            )
        if not choose:
            return
        recipe, judgement = choose_recipe(attempts)
        self.add("choose", "cpu", seconds=0.2, metrics={"recipe": recipe}, judgement=judgement)

    def build(self) -> None:
        engine = self.publish("engine", {"model.bin": b"e" * 90_000})
        self.add("build", "cpu", 24.0, artifacts={"engine": engine}, metrics={"device": "Test CPU"})
        repository = self.publish("model_repository", {"config.pbtxt": b"name: 'llm'"})
        self.add("package", "cpu", 2.0, artifacts={"repository": repository})
        self.add("staging", "cpu", 9.0, judgement=one_fact("golden prompts matched", 0.99, 0.95, "fraction", 100))
        served = self.scored(0.0005, ("arithmetic",))
        judged = judge_look(self.baseline, served, 1, 1, POLICY.served_accuracy, tasks=("arithmetic",))
        evaluation = self.publish_items(served, comparison=judged[1])
        self.add("served_accuracy", "cpu", 17.0, artifacts={"evaluation": evaluation}, judgement=judged[0])

    def load_test(self) -> None:
        directory = self._scratch / "load_test"
        directory.mkdir(parents=True)
        judgement = sample_load_test(directory).judgement
        artifacts = {"load_test": self.store.publish("load_test", directory)}
        self.add(
            "load_test", "cpu", 64.0, artifacts=artifacts, metrics={"output_tokens_per_second": 412.6},
            judgement=judgement,
        )  # fmt: skip

    def canary(self, *, good: bool = True) -> None:
        points, began_at = list[TimelinePoint](), self._clock.timestamp()
        events: list[CanaryEvent] = []

        def tell(at: float, kind: EventKind, summary: str = "", verdict: Verdict | None = None) -> None:
            event = {"number": len(events) + 1, "at": began_at + at, "kind": kind, "percent": percent, "by": CONTROLLER}
            events.append(CanaryEvent.model_validate({**event, "summary": summary, "verdict": verdict}))

        for step, percent in enumerate((5, 25, 50, 100)):
            bad = not good and percent == 25
            points += [self._point(20 * step + second, percent / 100, slow=bad) for second in range(20)]
            points += [self._point(20 * step + 20 + second, 0.0, slow=False) for second in range(10)] if bad else []
            tell(20.0 * step, EventKind.SHIFTED)
            if bad:
                tell(20.0 * step + 20, EventKind.ROLLING_BACK, "slow first tokens", Verdict.NO_GO)
                tell(20.0 * step + 20.4, EventKind.ROLLED_BACK)
            verdict = Verdict.NO_GO if bad else Verdict.GO
            summary = CanarySummary(began_at=began_at, events=tuple(events), points=tuple(points))
            self.add(
                "canary",
                f"cpu:{percent}",
                20.0,
                wait=7200.0 if not step else 1.0,
                artifacts={"canary": self.publish("canary", {SUMMARY_FILE: summary.model_dump_json().encode()})},
                judgement=one_fact("slow first tokens, ratio to stable", 9.1 if bad else 1.1, 2.0, "", 400, verdict),
            )
            if bad:
                self.add("rollback", "cpu", 1.1, metrics={"phase": "rolled back"})
                return

    def _point(self, second: float, share: float, *, slow: bool) -> TimelinePoint:
        def arm(share: float, factor: float, errors: int) -> ArmPoint:
            middle = factor * self._random.uniform(45, 60) if share else None
            return ArmPoint(
                requests=round(40 * share),
                errors=errors,
                lost=0,
                first_token_p50=middle,
                first_token_p95=middle and middle * self._random.uniform(1.5, 2.1),
                end_to_end_p50=middle,
                end_to_end_p95=middle,
            )

        candidate = arm(share, 4.0 if slow else 0.8, self._random.randrange(3) if slow else 0)
        return TimelinePoint(
            at_seconds=second, intended_share=share, candidate=candidate, stable=arm(1 - share, 1.0, 0)
        )

    def report(self) -> ReportData:
        """What its report shows."""
        return collect(self.store, RELEASE)

    def headline(self) -> Headline:
        return self.report().headline

    def point_at(self, release_id: str, recipe: str) -> None:
        """Let another release serve, since a day before."""
        ref = ArtifactRef(kind="model_repository", digest=f"{1:064d}")
        at = START - timedelta(days=1)
        pointer = Pointer(release_id=release_id, repository=ref, slot="blue", recipe=recipe, promoted_at=at)
        serve(self.store, "example/tiny-llama", "cpu", pointer)

    def conclude(self, recipe: str) -> None:
        """Write the record of the accuracy gate's stage key, which says which checkpoint was judged."""
        store = self.store
        results = {
            stage: store.read_document(results_name(RELEASE, stage, recipe)) for stage in ("quantize", "accuracy")
        }
        inputs = results["quantize"].value["artifacts"]
        content = KeyContent(stage="accuracy", version=1, subject=recipe, config={}, inputs=inputs, tools={})
        gate = {**results["accuracy"].value, "key": content.key}
        store.write_document(results_name(RELEASE, "accuracy", recipe), gate, results["accuracy"].revision)
        with Lease(store, stage_record_name(content.key)) as lease:
            lease.conclude(StageRecord.model_validate({"content": content, "result": gate}).model_dump(mode="json"))

    def fail(self, stage: str, subject: str, error: PipelineError) -> None:
        """Leave what `execute` does when a stage ends with an error."""
        failure = StageFailure(release_id=RELEASE, stage=stage, subject=subject, error=error.to_document())
        self.store.write_document(failure_name(RELEASE, stage, subject), failure.model_dump(mode="json"), None)

    def settle(self) -> None:
        self.add("settle", "cpu", 0.5)
        self.point_at(RELEASE, "fp8")


def _weights(recipe: str) -> WeightFormat:
    return "int4_blockwise" if recipe.startswith("int4") else "int8_weight_only"


def one_fact(  # noqa: PLR0917
    name: str, measured: float, limit: float, unit: str, samples: int, verdict: Verdict = Verdict.GO
) -> Judgement:
    fact = Evidence(name=name, verdict=verdict, measured=measured, limit=limit, unit=unit, samples=samples)
    words = "is within" if verdict is Verdict.GO else "is beyond"
    return judge(f"{name.capitalize()} {words} the limit.", [fact])


def whole_release(root: Path, *, good: bool = True, **options: Any) -> SampleRelease:
    """A release that reached production, or that its canary took back."""
    sample = SampleRelease(root, **options)
    sample.measure_baseline()
    sample.try_recipes()
    sample.build()
    sample.load_test()
    sample.canary(good=good)
    if good:
        sample.settle()
    return sample
