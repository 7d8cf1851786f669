"""Gate policies: the thresholds that decide GO or NO_GO."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from llm_pipeline.config.model import ConfigModel, Fraction, Name, Percent, PositiveSeconds

_ALL_TRAFFIC = 100.0


class AccuracyPolicy(ConfigModel):
    """When a quantized model is good enough, against its own baseline, item by item.

    Attributes:
        margin: Largest acceptable loss of accuracy, pooled over all items (0.01 is one point).
        task_margin: The same for each task alone; wider, because a task has fewer items.
        confidence: Confidence of the one-sided bounds.
        minimum_items: Fewer paired items are INCONCLUSIVE, whatever they show.
        maximum_items: Most items that are asked, of all tasks together; None for all there are.
        method: How the gate may decide before all items are asked: not at all (`fixed`), at a few planned looks
            (`group_sequential`), or at any time (`e_value`, for large pools); `auto` takes one of the latter two by the
            size of the pool.
        looks: Planned looks of the group-sequential test, the last one included. More of them spare more
            items: ten ask a lossless model 66 % of them on average, five 71 %, for about one point of power.
        required_tasks: Tasks without which nothing passes.
        anomalous_gain: A gain beyond this is ANOMALOUS: quantization does not make models better.
    """

    margin: Annotated[float, Field(gt=0.0, le=0.5)] = 0.01
    task_margin: Annotated[float, Field(gt=0.0, le=0.5)] = 0.03
    confidence: Annotated[float, Field(ge=0.5, lt=1.0)] = 0.95
    minimum_items: int = Field(default=500, ge=30)
    maximum_items: int | None = Field(default=None, ge=30)
    method: Literal["auto", "fixed", "group_sequential", "e_value"] = "auto"
    looks: int = Field(default=5, ge=1, le=20)
    required_tasks: tuple[str, ...] = ()
    anomalous_gain: Fraction = 0.05


class SpeedPolicy(ConfigModel):
    """How fast a recipe must be on its target, beside the unquantized model there.

    Attributes:
        minimum_ratio: Output tokens per second, the recipe's by the baseline's, as predicted for the target.
        requests: How many requests are decoded together. 4-bit weights win at one request and may lose at many.
    """

    minimum_ratio: Annotated[float, Field(gt=0.0)] = 1.0
    requests: int = Field(default=64, ge=1)


class StagingPolicy(ConfigModel):
    """When a staged server is ready.

    Attributes:
        ready_timeout_seconds: Longest wait for the first real generation.
        golden_match_fraction: Share of golden prompts whose greedy output must be the recorded one.
        minimum_golden_prompts: Fewer golden prompts are INCONCLUSIVE.
    """

    ready_timeout_seconds: PositiveSeconds = 120.0
    golden_match_fraction: Fraction = 0.95
    minimum_golden_prompts: int = Field(default=20, ge=1)


class ServiceLevel(ConfigModel):
    """What a request must be answered within, timed from its scheduled arrival."""

    first_token_milliseconds: Annotated[float, Field(gt=0.0)]
    end_to_end_milliseconds: Annotated[float, Field(gt=0.0)]


class LoadTestPolicy(ConfigModel):
    """When a staged server holds its service level.

    Attributes:
        service_level: The limits a request must meet to count as good.
        attainment: Share of requests that must be good.
        confidence: Confidence of the exact binomial statement about `attainment`.
        maximum_error_fraction: Share of failed requests above which the verdict is NO_GO.
        minimum_requests: Fewer finished requests are INCONCLUSIVE.
        maximum_client_lag_milliseconds: p99 delay of our own sends beyond which the run is void.
    """

    service_level: ServiceLevel
    attainment: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.95
    confidence: Annotated[float, Field(ge=0.5, lt=1.0)] = 0.95
    maximum_error_fraction: Fraction = 0.0
    minimum_requests: int = Field(default=100, ge=1)
    maximum_client_lag_milliseconds: Annotated[float, Field(gt=0.0)] = 50.0


class CanaryPolicy(ConfigModel):
    """How traffic moves, and what stops it.

    Attributes:
        steps_percent: Traffic share of the candidate at each step; rising, ending at 100.
        minimum_bake_seconds: Shortest time at a step.
        maximum_bake_seconds: A step that has not decided by then is INCONCLUSIVE and rolls back.
        minimum_requests: Candidate requests that a step must have seen before it can pass.
        alpha: Chance of a false rollback over all looks and metrics of the canary together.
        error_ratio: Tolerated ratio of the error rates, candidate to stable.
        slow_ratio: Tolerated ratio of the shares of slow requests, candidate to stable.
        slow_quantile: A request is slow beyond this quantile of stable's latency, fixed before step one.
        consecutive_failures: This many candidate failures in a row roll back at once.
        look_seconds: Time between two looks at the data.
    """

    steps_percent: tuple[Percent, ...] = (5.0, 25.0, 50.0, 100.0)
    minimum_bake_seconds: PositiveSeconds = 60.0
    maximum_bake_seconds: PositiveSeconds = 900.0
    minimum_requests: int = Field(default=50, ge=1)
    alpha: Annotated[float, Field(gt=0.0, lt=0.5)] = 0.05
    error_ratio: Annotated[float, Field(ge=1.0)] = 1.5
    slow_ratio: Annotated[float, Field(ge=1.0)] = 2.0
    slow_quantile: Annotated[float, Field(ge=0.5, lt=1.0)] = 0.9
    consecutive_failures: int = Field(default=5, ge=1)
    look_seconds: PositiveSeconds = 1.0

    @model_validator(mode="after")
    def _steps_rise_to_all(self) -> CanaryPolicy:
        steps = self.steps_percent
        if not steps or steps[-1] != _ALL_TRAFFIC or any(low >= high for low, high in pairwise(steps)):
            raise ValueError("steps_percent must rise and end at 100")
        if self.maximum_bake_seconds < self.minimum_bake_seconds:
            raise ValueError("maximum_bake_seconds is shorter than minimum_bake_seconds")
        return self


class Policy(ConfigModel):
    """All gate thresholds of a release."""

    name: Name
    accuracy: AccuracyPolicy = AccuracyPolicy()
    speed: SpeedPolicy | None = None
    served_accuracy: AccuracyPolicy = AccuracyPolicy()
    staging: StagingPolicy = StagingPolicy()
    load_test: LoadTestPolicy
    canary: CanaryPolicy = CanaryPolicy()
