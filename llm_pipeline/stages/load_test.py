"""Load test: open-loop traffic on the staged server, and the gate that decides whether it holds its service level."""

from __future__ import annotations

import asyncio
import time

from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.config.workload import Workload
from llm_pipeline.loadtest.gate import judge_load_test
from llm_pipeline.loadtest.measure import Measurement, measure
from llm_pipeline.loadtest.records import write_records
from llm_pipeline.loadtest.summary import Latency, LoadTestSummary, summarize, write_summary
from llm_pipeline.loadtest.table import format_load_test
from llm_pipeline.loadtest.workload import Schedule, make_schedule, read_prompts
from llm_pipeline.logging import get_logger
from llm_pipeline.serving.identity import require_served
from llm_pipeline.stages.contract import Metric, Produced, Stage, StageContext, StageOutput

log = get_logger(__name__)


class LoadTestConfig(ConfigModel):
    """What the load test reads.

    Attributes:
        endpoint: The staged server; says where, not what.
        repository_digest: What it must serve.
        workload: The traffic.
        policy: When the server is fast enough.
    """

    endpoint: str
    repository_digest: str
    workload: Workload
    policy: LoadTestPolicy


def run(context: StageContext[LoadTestConfig]) -> StageOutput:
    """Send the workload, judge the records.

    Raises:
        IntegrityError: The endpoint serves another repository.
        ConfigError: The prompts or the workload are no good.
        Transient: Nobody answers at the endpoint.
    """
    config = context.config
    schedule = make_schedule(config.workload, read_prompts(context.inputs["prompts"]))
    log.info("sending", requests=len(schedule.requests), seconds=schedule.duration_seconds, warmup=len(schedule.warmup))
    started = time.monotonic()
    measurement = asyncio.run(_measure(config, schedule))
    traffic_seconds = time.monotonic() - started  # warm-up, window, and the last answers
    judgement = judge_load_test(measurement.records, config.policy)
    summary = summarize(
        measurement.records,
        config.policy,
        offered_per_second=schedule.offered_rate,
        window_seconds=measurement.window_seconds,
        workload_digest=schedule.digest,
    )
    log.info(format_load_test(summary, judgement, config.policy))
    directory = context.workdir / "load_test"
    directory.mkdir(parents=True, exist_ok=True)
    write_records(directory, measurement.records)
    write_summary(directory, summary)
    return StageOutput(
        artifacts={"load_test": Produced("load_test", directory)},
        metrics=_metrics(summary),
        judgement=judgement,
        tool_seconds=traffic_seconds,
    )


async def _measure(config: LoadTestConfig, schedule: Schedule) -> Measurement:
    await require_served(config.endpoint, config.repository_digest)
    measurement = await measure(config.endpoint, schedule)
    await require_served(config.endpoint, config.repository_digest)
    return measurement


def _metrics(summary: LoadTestSummary) -> dict[str, Metric]:
    return {
        "requests": summary.requests,
        "failed": summary.failed,
        "offered_per_second": summary.offered_per_second,
        "good_per_second": summary.good_per_second,
        "output_tokens_per_second": summary.output_tokens_per_second,
        "first_token_p95_milliseconds": _quantile(summary.first_token, 0.95),
        "end_to_end_p95_milliseconds": _quantile(summary.end_to_end, 0.95),
        "client_lag_p99_milliseconds": summary.client_lag_p99_milliseconds,
    }


def _quantile(latency: Latency | None, quantile: float) -> float | None:
    return next((q.milliseconds for q in latency.quantiles if q.quantile == quantile), None) if latency else None


STAGE = Stage(
    name="load_test",
    version=1,
    config=LoadTestConfig,
    run=run,
    environment="control",
    tools=("aiohttp",),
    places=frozenset({"endpoint"}),
)
