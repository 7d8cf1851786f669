"""Recipes tried on one model: each through the quantize and the accuracy stage, then a table of what came out.

The stages run in this process, one after another: the libraries are imported once.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from llm_pipeline.accuracy.gate import compare_as_judged
from llm_pipeline.accuracy.paired import PairedAccuracy
from llm_pipeline.artifacts.items import read_items
from llm_pipeline.base.records import ArtifactRef, Metric
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.release import Evaluation
from llm_pipeline.config.store import store_settings
from llm_pipeline.release.contract import StageFailure, StageRequest, StageResult
from llm_pipeline.release.execute import execute
from llm_pipeline.stages.accuracy import AccuracyConfig
from llm_pipeline.stages.baseline import BaselineConfig
from llm_pipeline.stages.quantize import QuantizeConfig
from llm_pipeline.store import ArtifactStore, open_store

Dtype = Literal["float16", "bfloat16"]


@dataclass(frozen=True)
class Attempt:
    """One recipe after it was tried.

    Attributes:
        verdict: The accuracy gate's; None when a stage failed.
        problem: The error of the stage that failed.
        paired: The loss over the asked items, with its interval.
        divergence: KL divergence from the baseline's token distributions, at least, in nats a token.
        quantize: Facts of the quantize stage.
        seconds: Wall time of both stages.
    """

    recipe: QuantizationRecipe
    verdict: Verdict | None
    problem: str = ""
    paired: PairedAccuracy | None = None
    divergence: float | None = None
    quantize: Mapping[str, Metric] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def bytes(self) -> int:
        """Size of the checkpoint's weights; 0 when there is none."""
        return int(self.quantize.get("bytes") or 0)


class Model:
    """A model with its baseline evaluation, in a store of its own."""

    def __init__(self, place: Path, checkpoint: Path, tasks: Path, evaluation: Evaluation, dtype: Dtype) -> None:
        self._place, self._evaluation, self._dtype = place, evaluation, dtype
        self._store: ArtifactStore = open_store(store_settings(uri=f"file://{place / 'store'}"))
        self._checkpoint = self._store.publish("checkpoint", checkpoint)
        self._tasks = self._store.publish("dataset", tasks)
        config = BaselineConfig.of(evaluation, dtype)
        self.baseline = self._run("baseline", "", config, {"checkpoint": self._checkpoint, "tasks": self._tasks})
        self.items = read_items(self._store.fetch(self.baseline.artifacts["evaluation"]))

    @property
    def accuracy(self) -> float:
        """The baseline's, over all items."""
        return sum(item.score or 0.0 for item in self.items) / len(self.items)

    def attempt(self, recipe: QuantizationRecipe, texts: Sequence[Path], policy: AccuracyPolicy) -> Attempt:
        """Quantize by a recipe and judge what came out.

        Args:
            recipe: The recipe.
            texts: The files of its calibration sources.
            policy: When a loss is too much.
        """
        begun = time.perf_counter()
        try:
            quantized = self._quantize(recipe, texts)
            judged = self._judge(recipe, quantized.artifacts["checkpoint"], policy)
        except StageFailedError as error:
            return Attempt(recipe, None, str(error), seconds=time.perf_counter() - begun)
        items = read_items(self._store.fetch(judged.artifacts["evaluation"]))
        divergence = judged.metrics.get("kl_at_least")
        return Attempt(
            recipe=recipe,
            verdict=judged.judgement.verdict if judged.judgement else None,
            paired=compare_as_judged(self.items, items, policy, judged.judgement).pooled,
            divergence=None if divergence is None else float(divergence),
            quantize=quantized.metrics,
            seconds=time.perf_counter() - begun,
        )

    def _quantize(self, recipe: QuantizationRecipe, texts: Sequence[Path]) -> StageResult:
        inputs = {"checkpoint": self._checkpoint}
        if recipe.calibration:
            inputs["calibration"] = self._publish_texts(recipe.name, texts)
        return self._run("quantize", recipe.name, QuantizeConfig(recipe=recipe, dtype=self._dtype), inputs)

    def _publish_texts(self, recipe: str, texts: Sequence[Path]) -> ArtifactRef:
        directory = self._place / "texts" / recipe
        directory.mkdir(parents=True, exist_ok=True)
        for number, path in enumerate(texts):
            name = path.name if len(texts) == 1 else f"{number}-{path.name}"
            shutil.copyfile(path, directory / name)
        return self._store.publish("dataset", directory)

    def _judge(self, recipe: QuantizationRecipe, checkpoint: ArtifactRef, policy: AccuracyPolicy) -> StageResult:
        config = AccuracyConfig(evaluation=self._evaluation, policy=policy, dtype=self._dtype)
        baseline = self.baseline.artifacts["evaluation"]
        inputs = {"checkpoint": checkpoint, "baseline": baseline, "tasks": self._tasks}
        return self._run("accuracy", recipe.name, config, inputs)

    def _run(self, stage: str, subject: str, config: ConfigModel, inputs: Mapping[str, ArtifactRef]) -> StageResult:
        request = StageRequest(
            release_id="benchmark",
            stage=stage,
            subject=subject,
            config=config.model_dump(mode="json"),
            inputs=dict(inputs),
            store=store_settings(uri=self._store.uri),
            work_root=str(self._place / "work"),
        )
        outcome = execute(request)
        if isinstance(outcome, StageFailure):
            raise StageFailedError(f"{stage}: {outcome.error.message}")
        return outcome


class StageFailedError(Exception):
    """A stage ended with an error."""


def format_table(attempts: Sequence[Attempt], confidence: float) -> str:
    """All attempts, the smallest checkpoint first.

    The interval is between two one-sided bounds, each of the given confidence.
    """
    head = f"{'recipe':<24}{'verdict':<14}{'items':>7}{'accuracy':>10}{'loss, points (interval)':>27}{'lost':>6}"
    head += f"{'gained':>8}{'KL':>9}{'MB':>9}{'of 16 bit':>11}{'s':>7}"
    rows = [_row(attempt) for attempt in sorted(attempts, key=lambda attempt: attempt.bytes)]
    note = f"interval: one-sided bounds of {100 * confidence:g} % each; KL: nats a token from the baseline, at least"
    return "\n".join([head, "-" * len(head), *rows, note])


def _row(attempt: Attempt) -> str:
    name = f"{attempt.recipe.name:<24}"
    if attempt.paired is None or attempt.paired.loss is None or attempt.paired.candidate is None:
        return f"{name}{'failed':<14}{attempt.problem or 'no items'}"
    loss = attempt.paired.loss
    interval = f"{100 * loss.estimate:+.2f} ({100 * loss.lower:+.2f} to {100 * loss.upper:+.2f})"
    divergence = "-" if attempt.divergence is None else f"{attempt.divergence:.4f}"
    return (
        f"{name}{attempt.verdict or '-':<14}{attempt.paired.pairs:>7}{attempt.paired.candidate.estimate:>10.2%}"
        f"{interval:>27}{attempt.paired.lost:>6}{attempt.paired.gained:>8}{divergence:>9}{attempt.bytes / 1e6:>9.2f}"
        f"{attempt.quantize['size_ratio']:>11.3f}{attempt.seconds:>7.1f}"
    )
