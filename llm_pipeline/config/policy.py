"""Gate policies: the thresholds that decide GO or NO_GO."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from llm_pipeline.config.model import (
    Alpha,
    Confidence,
    ConfigModel,
    Fraction,
    Hours,
    Items,
    Name,
    Percent,
    PositiveMilliseconds,
    PositiveSeconds,
    Ratio,
    RatioAboveOne,
    Seconds,
    Small,
)

Margin = Annotated[float, Field(ge=1e-6, le=0.5)]
LimitHours = Annotated[float, Field(ge=0.0001, le=24 * 30)]
Quantile = Annotated[float, Field(ge=0.5, le=0.999_999)]

_ALL_TRAFFIC = 100.0

CONTROL_PERCENT = 2.0
"""Of the traffic stays on stable at the step of 100 %, too, until the release is settled: for comparison, and so that
stable can answer requests that the candidate fails."""


class AccuracyPolicy(ConfigModel):
    """When a quantized model is good enough, against its own baseline, item by item.

    Attributes:
        margin: Largest acceptable loss of accuracy, pooled over all items (0.01 is one point).
        task_margin: The same for each task alone, where a group such as MMLU is one task; wider, because a task has
            fewer items.
        confidence: Confidence of the one-sided bounds.
        minimum_items: Fewer paired items are INCONCLUSIVE, whatever they show.
        maximum_cut_share: A task with more answers that ended by length, of the baseline or of the candidate, is
            INCONCLUSIVE: raise `evaluation.max_gen_toks`, or close the thinking by
            `evaluation.chat_template_arguments`. 1 where models write on after what a task reads of an answer.
    """

    margin: Margin = 0.01
    task_margin: Margin = 0.03
    confidence: Confidence = 0.95
    minimum_items: Annotated[Items, Field(ge=30)] = 500
    maximum_cut_share: Fraction = 0.02


class StagingPolicy(ConfigModel):
    """When a staged server is ready.

    Attributes:
        ready_timeout_seconds: Longest wait for the first real generation.
        golden_match_fraction: Share of golden prompts whose greedy output must be the one that the build recorded.
        minimum_golden_prompts: Fewer golden prompts are INCONCLUSIVE.
    """

    ready_timeout_seconds: PositiveSeconds = 120.0
    golden_match_fraction: Fraction = 0.95
    minimum_golden_prompts: Items = 20


class ServiceLevel(ConfigModel):
    """What a request must be answered within, timed from its scheduled arrival.

    Attributes:
        first_token_milliseconds: To the first text.
        end_to_end_milliseconds: To the last byte; None for no limit.
        time_per_output_token_milliseconds: Time from the first to the last token, by the tokens after the first; None
            for no limit.
        longest_stall_milliseconds: Longest silence within an answer; None for no limit.
        together: A request is good when it meets all limits (goodput), or each limit has `attainment` of its own
            (MLPerf Inference).
    """

    first_token_milliseconds: PositiveMilliseconds
    end_to_end_milliseconds: PositiveMilliseconds | None = None
    time_per_output_token_milliseconds: PositiveMilliseconds | None = None
    longest_stall_milliseconds: PositiveMilliseconds | None = None
    together: bool = True

    @property
    def in_words(self) -> str:
        """The limits for a sentence."""
        limits = (
            (self.first_token_milliseconds, "to the first token"),
            (self.time_per_output_token_milliseconds, "a token after it"),
            (self.longest_stall_milliseconds, "of silence"),
            (self.end_to_end_milliseconds, "to the end"),
        )
        return ", ".join(f"{limit:g} ms {words}" for limit, words in limits if limit is not None)


class RateSearch(ConfigModel):
    """The search for the highest rate at which the service level is met: brackets, then bisects.

    Attributes:
        maximum_multiple: Highest rate that is tried, as a multiple of the workload's.
        resolution: The search ends when its bracket is so narrow, relative to the rate.
        window_seconds: Length of one probe.
        minimum_requests: A probe at a low rate is as much longer as this needs.
    """

    maximum_multiple: Ratio = 4.0
    resolution: Annotated[float, Field(ge=0.001, lt=1.0)] = 0.1
    window_seconds: PositiveSeconds = 15.0
    minimum_requests: Annotated[Items, Field(ge=10)] = 100


class Regression(ConfigModel):
    """The comparison with what serves now, on the same host, window by window in turn, with the same requests.

    Attributes:
        maximum_ratio: Latency of the candidate by that of production: NO_GO when it is shown to be above.
        window_seconds: Length of one window.
        rounds: Pairs of windows, each pair with a seed of its own; an undecided comparison needs more of them, or
            longer ones.
    """

    maximum_ratio: RatioAboveOne = 1.2
    window_seconds: PositiveSeconds = 20.0
    rounds: Annotated[Small, Field(ge=4)] = 8


class LoadTestPolicy(ConfigModel):
    """When a staged server holds its service level.

    Attributes:
        service_level: The limits a request must meet to count as good.
        attainment: Share of requests that must be good.
        confidence: Confidence of each bound of the load gate.
        maximum_error_fraction: Share of failed requests; NO_GO when it is shown to be above, GO when it is shown not to
            be, which takes about 4 / share requests at 98 % if none fails. With 0 none may fail, and nothing more is
            shown.
        maximum_client_lag_milliseconds: p99 delay of our own sends beyond which a window is void.
        windows: Windows that the verdict is made of, one after another, each with a seed of its own and a sixth of the
            workload's duration. Fewer than four that count are never a GO.
        window_growth: How many times as long windows become at most where requests wait for one another: a window is
            at least twenty times as long as the longest wait that was seen. 1 for tests that must end in time.
        search: How the highest rate is looked for; None for no search: the target rate alone is confirmed.
        regression: The comparison with production; None for none.
    """

    service_level: ServiceLevel
    attainment: Annotated[float, Field(ge=0.01, le=0.999_999)] = 0.95
    confidence: Confidence = 0.98
    maximum_error_fraction: Fraction = 0.0
    maximum_client_lag_milliseconds: PositiveMilliseconds = 50.0
    windows: Annotated[Small, Field(ge=4, le=100)] = 12
    window_growth: Annotated[float, Field(ge=1.0, le=100.0)] = 3.0
    search: RateSearch | None = RateSearch()
    regression: Regression | None = None


class CanaryPolicy(ConfigModel):
    """How traffic moves, and what stops it.

    Attributes:
        steps_percent: Traffic share of the candidate at each step; rising, ending at 100.
        minimum_bake_seconds: Shortest time at a step.
        maximum_bake_seconds: A step that has not decided by then is INCONCLUSIVE; see `on_undecided`.
        minimum_requests: Candidate requests that a step must have seen before it can pass.
        alpha: Chance of a false rollback over all looks and metrics of the canary together.
        error_ratio: Tolerated ratio of the odds of a failed answer, and of an empty or cut one, candidate to stable.
        slow_ratio: Tolerated ratio of the odds of a slow request, candidate to stable: where few are slow, the ratio of
            their shares; at the median 1.5 tolerates 60 % for 50 %.
        slow_quantiles: A request is slow beyond these quantiles of stable's latencies, fixed before step one. One is
            left out if fewer than five of stable's requests are beyond it: 0.99 needs 500 requests.
        consecutive_failures: This many candidate failures in a row roll back at once.
        look_seconds: Time between two looks at the data.
        replay_requests_per_second: Prompts of the workload that are sent to the users' port as further traffic to judge
            by (the verdict says how many they were); 0 sends none. For routers of kind `envoy`.
        on_undecided: What follows an undecided step: `pause` keeps the weights and asks a person, `roll_back` ends the
            canary. If stable gets no requests before the first step, the canary ends; set `replay_requests_per_second`
            for such places.
        approve_before_percent: Steps that begin only after a person approved each of them.
        pause_deadline_seconds: A canary that waits longer than this for a person is rolled back, whatever its share: it
            holds a slot and blocks other releases, and its users are not watched.
        unwatched_seconds: The guard rolls back a canary whose controller gave no sign of life for this long. It must be
            longer than the time between two steps.
        rollback_window_hours: How long the previous version stays warm after a promotion, so that a rollback takes
            seconds. Then its server is stopped, and a rollback has to start it again.
        drain_seconds: How long a server that is to be stopped may finish its requests; those left then are cut, and
            counted. It must be longer than the longest answer takes.
    """

    steps_percent: Annotated[tuple[Percent, ...], Field(max_length=100)] = (5.0, 25.0, 50.0, 100.0)
    minimum_bake_seconds: PositiveSeconds = 60.0
    maximum_bake_seconds: PositiveSeconds = 900.0
    minimum_requests: Items = 50
    alpha: Alpha = 0.05
    error_ratio: Ratio = 1.5
    slow_ratio: Ratio = 1.5
    slow_quantiles: tuple[Quantile, ...] = Field((0.5, 0.9, 0.99), min_length=1, max_length=20)
    consecutive_failures: Small = 5
    look_seconds: PositiveSeconds = 1.0
    replay_requests_per_second: Annotated[float, Field(ge=0.0, le=1_000.0)] = 0.0
    on_undecided: Literal["pause", "roll_back"] = "pause"
    approve_before_percent: Annotated[tuple[Percent, ...], Field(max_length=100)] = ()
    pause_deadline_seconds: PositiveSeconds = 14_400.0
    unwatched_seconds: PositiveSeconds = 300.0
    rollback_window_hours: Hours = 24.0
    drain_seconds: Seconds = 300.0

    def share_at(self, percent: float) -> float:
        """The candidate's share of the traffic at a step: never quite all of it."""
        return min(percent, _ALL_TRAFFIC - CONTROL_PERCENT) / _ALL_TRAFFIC

    @model_validator(mode="after")
    def _steps_fit(self) -> CanaryPolicy:
        steps = self.steps_percent
        if not steps or steps[-1] != _ALL_TRAFFIC or any(low >= high for low, high in pairwise(steps)):
            raise ValueError("steps_percent must rise and end at 100")
        if self.maximum_bake_seconds < self.minimum_bake_seconds:
            raise ValueError("maximum_bake_seconds is shorter than minimum_bake_seconds")
        if unknown := sorted(set(self.approve_before_percent) - set(steps)):
            raise ValueError(f"approve_before_percent names {unknown}, which are no steps of steps_percent")
        if any(low >= high for low, high in pairwise(self.slow_quantiles)):
            raise ValueError("slow_quantiles must rise")
        return self


class Policy(ConfigModel):
    """All gate thresholds of a release, and how long its stages may take.

    Attributes:
        longest_stage_hours: No stage takes longer altogether. One that hangs is stopped before: it may take four times
            what the plan expects of it, or longer as long as it gets on.
    """

    name: Name
    longest_stage_hours: LimitHours = 24.0
    accuracy: AccuracyPolicy = AccuracyPolicy()
    served_accuracy: AccuracyPolicy = AccuracyPolicy()
    staging: StagingPolicy = StagingPolicy()
    load_test: LoadTestPolicy
    canary: CanaryPolicy = CanaryPolicy()
