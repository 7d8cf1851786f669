"""Load test: traffic on the staged server until it is known what it holds, and the gate that decides on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from pydantic import Field

from llm_pipeline.artifacts.golden import read_golden
from llm_pipeline.base.logging import Lines, get_logger
from llm_pipeline.base.records import ArtifactRef, Metric
from llm_pipeline.base.verdict import Evidence, Verdict, judge
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.policy import LoadTestPolicy, StagingPolicy
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.config.workload import Workload
from llm_pipeline.loadtest.outcome import (
    LoadTestOutcome,
    acceptance_length,
    deciding_windows,
    quantile_of,
    write_outcome,
)
from llm_pipeline.loadtest.physics import PhysicalLimits
from llm_pipeline.release.contract import PROMPTS_DATASET, Produced, Stage, StageContext, StageOutput
from llm_pipeline.stages.request_parts import server_software, staging_endpoint

if TYPE_CHECKING:
    from llm_pipeline.loadtest.measure import LoadClient
    from llm_pipeline.loadtest.workload import TrafficSource
    from llm_pipeline.release_progress import ReleaseProgress

log = get_logger(__name__)

_QUANTILE = 0.95
_SEEDS_AN_ATTEMPT = 1_000_000
"""More than one attempt uses up."""


class ComparisonPlace(ConfigModel):
    """Where the version in production is served once more, for the comparison.

    Attributes:
        ports: Its own ports (and GPUs).
        triton_home: Directory with the unpacked nvidia-pytriton wheel, or an installed server.
        python: Interpreter of the served model's code.
        state: Its slot's directory.
    """

    ports: ServerPorts
    triton_home: Path
    python: Path
    state: Path


class LoadTestConfig(ConfigModel):
    """What the load test reads.

    Attributes:
        endpoint: The staged server; says where, not what.
        comparison: Where production is compared with; None where it is not.
        repository_digest: What the endpoint must serve.
        users: Requests that the engine holds at a time.
        workload: The traffic.
        policy: When the server is fast enough.
        staging: When it is ready, asked once more after the load.
        physics: What the hardware allows at best; None where that is not known.
        hour_price: Price of an hour of the engine's GPUs, or of the machine on a CPU; None without one.
        currency: What it is in.
    """

    endpoint: Endpoint
    comparison: ComparisonPlace | None = None
    repository_digest: str
    users: int = Field(ge=1)
    workload: Workload
    policy: LoadTestPolicy
    staging: StagingPolicy
    physics: PhysicalLimits | None = None
    hour_price: float | None = None
    currency: str = "USD"


def run(context: StageContext[LoadTestConfig]) -> StageOutput:
    """Run the load test, judge it.

    Raises:
        IntegrityError: The endpoint serves another repository.
        ConfigError: The prompts or the workload are no good, or no window of it could ever decide.
        Transient: Nobody answers at the endpoint.
    """
    from llm_pipeline.loadtest.duration import require_enough
    from llm_pipeline.loadtest.findings import format_load_test
    from llm_pipeline.loadtest.measure import LoadClient
    from llm_pipeline.loadtest.outcome import token_cost
    from llm_pipeline.loadtest.prompts import open_counter
    from llm_pipeline.loadtest.session import Windows, run_session
    from llm_pipeline.loadtest.workload import TrafficSource
    from llm_pipeline.serving.endpoint_access import require_served
    from llm_pipeline.serving.repository_links import fetch_links

    context = _drawn_anew(context)
    config = context.config
    require_enough(config.workload, config.policy)
    repository = context.inputs["repository"]
    counter = open_counter(repository, fetch_links(repository, context.store))
    source = TrafficSource(config.workload, context.inputs["prompts"], count_tokens=counter)
    directory = context.workdir / "load_test"
    directory.mkdir(parents=True, exist_ok=True)
    require_served(config.endpoint, config.repository_digest)
    with LoadClient(config.endpoint) as client:
        windows = Windows(client, source, config.workload, config.policy, directory)
        outcome = run_session(windows, users=config.users, physics=config.physics)
        cost = token_cost(outcome, config.hour_price, config.currency)
        outcome = outcome.model_copy(update={"token_cost": cost})
        outcome = _compared(context, client, source, outcome)
    outcome = _probed_again(context, outcome)
    require_served(config.endpoint, config.repository_digest)
    log.info(Lines(f"the load test:{format_load_test(outcome, config.policy)}"))
    write_outcome(directory, outcome)
    return StageOutput(
        artifacts={"load_test": Produced("load_test", directory)},
        metrics=_metrics(outcome),
        judgement=outcome.judgement,
    )


def _drawn_anew(context: StageContext[LoadTestConfig]) -> StageContext[LoadTestConfig]:
    """With a seed of its own if it was tried before: a server may still have the prompts of that in its caches."""
    tries = context.workdir / "tries"
    before = len(tries.read_bytes()) if tries.exists() else 0
    with tries.open("ab") as stream:
        stream.write(b".")
    workload = context.config.workload
    again = workload.model_copy(update={"seed": workload.seed + _SEEDS_AN_ATTEMPT * before})
    return replace(context, config=context.config.model_copy(update={"workload": again}))


def _compared(
    context: StageContext[LoadTestConfig], client: LoadClient, source: TrafficSource, outcome: LoadTestOutcome
) -> LoadTestOutcome:
    """With the comparison with production, where there is one and the candidate is worth it."""
    config, production = context.config, context.request.inputs.get("production")
    if config.policy.regression is None or outcome.judgement.verdict is not Verdict.GO:
        return outcome
    if production is None or config.comparison is None:
        why = "its place has no ports for it (`comparison`)" if production else "nothing is in production yet"
        return outcome.model_copy(update={"notes": (*outcome.notes, f"There is no comparison with production: {why}.")})
    from llm_pipeline.loadtest.measure import LoadClient
    from llm_pipeline.loadtest.regression import compare

    workload = config.workload
    with _served_again(context, config.comparison, production) as endpoint, LoadClient(endpoint) as other:
        facts = compare(client, other, source, config.policy, workload.rate_per_second, seed=workload.seed)
    note = f"It was compared with production, {production}."
    return _with_facts(outcome.model_copy(update={"notes": (*outcome.notes, note)}), facts)


@contextmanager
def _served_again(
    context: StageContext[LoadTestConfig], place: ComparisonPlace, production: ArtifactRef
) -> Iterator[Endpoint]:
    """The version in production, on a second server beside staging for the time of the block.

    A gate never puts load on production itself: its users would pay for it, and their traffic would be in the figures.
    What a killed comparison left running is stopped by the next one, and by `staging_down`.
    """
    from llm_pipeline.serving.repository_links import fetch_servable
    from llm_pipeline.serving.triton_server import start_server, stop_server

    repository, links = fetch_servable(context.store, production)
    stop_server(place.state)
    try:
        yield start_server(
            repository,
            place.ports,
            triton_home=place.triton_home,
            python=place.python,
            state=place.state,
            digest=production.digest,
            links=links,
            wait_seconds=context.config.staging.ready_timeout_seconds,
        ).endpoint
    finally:
        stop_server(place.state)


def _probed_again(context: StageContext[LoadTestConfig], outcome: LoadTestOutcome) -> LoadTestOutcome:
    """With the probes of staging, once more: a server must be as sound after the load as it was before."""
    config = context.config
    if outcome.judgement.verdict is not Verdict.GO:
        return outcome
    import asyncio

    from llm_pipeline.serving.probes import probe

    golden = read_golden(context.inputs["repository"])
    judgement = asyncio.run(probe(config.endpoint, golden, config.staging))
    renamed = [fact.model_copy(update={"name": f"after the load: {fact.name}"}) for fact in judgement.evidence]
    return _with_facts(outcome, renamed)


def _with_facts(outcome: LoadTestOutcome, facts: list[Evidence] | tuple[Evidence, ...]) -> LoadTestOutcome:
    """With more evidence; the first fact that is worse than what was decided so far says why."""
    before = outcome.judgement
    judgement = judge(before.summary, (*before.evidence, *facts))
    if judgement.verdict is not before.verdict:
        deciding = next(fact for fact in facts if fact.verdict is judgement.verdict)
        judgement = judgement.model_copy(update={"summary": f"{deciding.name}: {deciding.detail}"})
    return outcome.model_copy(update={"judgement": judgement})


def _metrics(outcome: LoadTestOutcome) -> dict[str, Metric]:
    """Of all windows: counts; of those that decided: figures."""
    windows = deciding_windows(outcome)
    metrics: dict[str, Metric] = {
        "target_rate_per_second": outcome.target_rate_per_second,
        "confirmed_rate_per_second": outcome.confirmed_rate_per_second,
        "highest_rate_per_second": outcome.highest_rate_per_second,
        "requests": sum(window.requests for window in outcome.windows),
        "failed": sum(window.failed for window in outcome.windows),
    }
    if not windows:
        return metrics
    return {
        **metrics,
        "good_fraction": mean(window.good_fraction for window in windows),
        "output_tokens_per_second": mean(window.output_tokens_per_second for window in windows),
        "first_token_p95_milliseconds": quantile_of((window.first_token for window in windows), _QUANTILE),
        "time_per_output_token_p95_milliseconds": quantile_of(
            (window.time_per_output_token for window in windows), _QUANTILE
        ),
        "end_to_end_p95_milliseconds": quantile_of((window.end_to_end for window in windows), _QUANTILE),
        "gpu_memory_bytes": max(filter(None, (window.server.gpu_memory_bytes for window in windows)), default=None),
        "acceptance_length": acceptance_length(outcome),
        **(outcome.token_cost.metrics if outcome.token_cost else {}),
    }


def request(flow: ReleaseProgress, subject: str) -> tuple[LoadTestConfig, Mapping[str, ArtifactRef]]:
    """What the stage is given."""
    from llm_pipeline.planning.speed import physical_limits

    repository, target = flow.artifact("package", subject, "repository"), flow.target(subject)
    recipe, workload = flow.release.recipe(flow.chosen_recipe(subject)), flow.release.workload
    price = flow.deployment.gpu_hour_prices.get(target.accelerator)
    config = LoadTestConfig(
        endpoint=staging_endpoint(flow, subject),
        comparison=_comparison(flow, subject),
        repository_digest=repository.digest,
        users=target.limits.maximum_sequences,
        workload=workload,
        policy=flow.release.policy.load_test,
        staging=flow.release.policy.staging,
        physics=physical_limits(flow.record.facts, target, recipe, workload),
        hour_price=None if price is None else price * max(1, target.accelerator_count),
        currency=flow.deployment.currency,
    )
    inputs = {"prompts": flow.record.datasets[PROMPTS_DATASET], "repository": repository}
    if flow.release.policy.load_test.regression and (production := _production(flow, subject, repository)):
        inputs["production"] = production
    return config, inputs


def _comparison(flow: ReleaseProgress, target: str) -> ComparisonPlace | None:
    """Where production is served once more; None where the deployment has no ports for it."""
    ports = flow.place(target).comparison
    if ports is None:
        return None
    return ComparisonPlace(
        ports=ports, **server_software(flow, target), state=Path(flow.state_directory(target, "comparison"))
    )


def _production(flow: ReleaseProgress, target: str, candidate: ArtifactRef) -> ArtifactRef | None:
    """What serves now, or served before it if that is the candidate; None before the first release."""
    from llm_pipeline.release.trusted_pointers import require_served
    from llm_pipeline.store.place_state import read_place

    model_id, place = flow.record.model.id, flow.record.place_of(target)
    known = read_place(flow.store, place).of(model_id)
    for pointer in (known.production, known.previous):
        if pointer is not None and pointer.repository != candidate:
            require_served(flow.store, model_id, place, pointer)
            return pointer.repository
    return None


STAGE = Stage(
    name="load_test",
    version=10,
    config=LoadTestConfig,
    request=request,
    run=run,
    tools=("aiohttp", "uvloop"),
    places=frozenset({"endpoint", "comparison"}),
    measures=True,
)
