"""Loading checkpoints of our quantize stage with the real LLM API: answers, memory, and what a time limit leaves."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from llm_pipeline.base.errors import Unsupported
from llm_pipeline.base.json_document import read_object
from llm_pipeline.catalog.tables import Column
from llm_pipeline.config.target import EngineBuilderName
from llm_pipeline.engines.builder import engine_builder
from llm_pipeline.engines.failures import BuildFailed
from llm_pipeline.engines.llm_args.recorded_schema import dialect_of
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.model_facts.reader import ModelDocuments, read_facts
from llm_pipeline.planning.formats import Platform, kv_support, weights_support, worse
from llm_pipeline.planning.target_memory import judge_memory
from llm_pipeline.verification.bench import Bench, PreparedCheckpoint
from llm_pipeline.verification.report import Seen, Skipped

_BUILDER: EngineBuilderName = "tensorrt_llm_llmapi"
_GIB = 2**30
_GONE_SECONDS = 30.0
_MARK = "LLM_PIPELINE_VERIFICATION_STEP"
"""A variable that every process of the step inherits, also if its parent ends."""


def load(bench: Bench, recipe: PreparedCheckpoint) -> Seen:
    """Build for the LLM API: it loads, and answers as the checkpoint did before."""
    _require(bench, recipe)
    engine = bench.engine(f"load_{recipe.name}")
    engine.parent.mkdir(parents=True)
    facts = engine_builder(_BUILDER).build(bench.inputs(recipe, _BUILDER), engine)
    match = facts.details["golden_match_fraction"]
    return Seen(
        f"quantization {facts.quantization}, KV cache {facts.kv_cache}, golden match {match:.0%} of "
        f"{facts.details['golden_prompts']}, loaded in {facts.seconds['load']:.0f} s, "
        f"{facts.batched_tokens_per_second} tokens/s with {facts.batched_sequences} sequences"
    )


def compare_memory(bench: Bench, recipe: PreparedCheckpoint) -> Seen:
    """The peak of the load against the plan's sum of weights, runtime and KV cache pool."""
    description = bench.description(f"load_{recipe.name}")
    if description is None:
        raise Skipped(f"load_{recipe.name} made no engine")
    measured = description.facts.details["peak_memory_bytes"]
    if not isinstance(measured, int | float):
        raise Skipped("nvidia-smi did not say what memory was in use")
    fit, _ = judge_memory(description.target, recipe.recipe, _facts(bench.checkpoint(recipe)))
    if fit is None:
        raise Unsupported("the plan has no figure for this model on one GPU")
    planned = fit.weights + fit.runtime + fit.kv_available
    text = (
        f"peak {measured / _GIB:.2f} GiB, planned {planned / _GIB:.2f} GiB (weights {fit.weights / _GIB:.2f}, "
        f"runtime {fit.runtime / _GIB:.2f}, KV cache pool {fit.kv_available / _GIB:.2f})"
    )
    over = [f"{(measured - planned) / _GIB:.2f} GiB more than planned"] if measured > planned else []
    return Seen(text, over)


def stop_at_time_limit(bench: Bench, recipe: PreparedCheckpoint) -> Seen:
    """A build that is stopped while it loads leaves no process behind: workers of MPI are not our children."""
    description = bench.description(f"load_{recipe.name}")
    if description is None:
        raise Skipped(f"load_{recipe.name} made no engine")
    seconds = description.facts.seconds
    limit = seconds["import"] + seconds["load"] / 2
    engine = bench.engine("time_limit")
    engine.parent.mkdir(parents=True)
    with _marked() as mark:
        try:
            engine_builder(_BUILDER).build(bench.inputs(recipe, _BUILDER, minutes=limit / 60), engine)
        except BuildFailed as error:
            if "time limit" not in str(error):
                raise
        else:
            raise Skipped(f"it was done before its limit of {limit:.1f} s")
        left = _left_behind(mark)
    return Seen(f"stopped after {limit:.1f} s, while it loaded", [f"still runs: {process}" for process in left])


@contextmanager
def _marked() -> Iterator[str]:
    """Marks the processes that are started while it is entered."""
    os.environ[_MARK] = mark = uuid.uuid4().hex
    try:
        yield mark
    finally:
        del os.environ[_MARK]


def _left_behind(mark: str) -> list[str]:
    """Marked processes, once those that are about to end have had their time."""
    deadline = time.monotonic() + _GONE_SECONDS
    while (left := list(_processes(mark))) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def _processes(mark: str) -> Iterator[str]:
    for process in psutil.process_iter():
        try:
            if process.environ().get(_MARK) == mark:
                yield f"{process.name()} ({process.pid})"
        except psutil.Error:  # it ended, or is another user's
            continue


def _require(bench: Bench, recipe: PreparedCheckpoint) -> None:
    """Leave out what is recorded as impossible on this GPU; what could not be prepared is a failure of its own."""
    column: Column = "pytorch_1_2" if dialect_of(bench.runtime.version).name == "1.2.x" else "pytorch_main"
    platform = Platform(bench.host.gpus[0].sm, column)
    support = worse(
        weights_support(platform, recipe.recipe.weights, bench.prepared.dtype),
        kv_support(platform, recipe.recipe.kv_cache),
    )
    if support.value == "no":
        raise Skipped(f"recorded as impossible here: {support.text}")
    if recipe.refused:
        raise Unsupported(f"the quantize stage did not make it: {recipe.refused}")


def _facts(checkpoint: Path) -> ModelFacts:
    return read_facts(ModelDocuments(read_object(checkpoint / "config.json", finite=False)))
