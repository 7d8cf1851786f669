"""The steps in their order: later ones use what earlier ones built."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from functools import partial

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.engines.llm_args.recorded_schema import dialect_of, recorded_schema
from llm_pipeline.verification import engine_steps, loading_steps, serving_steps
from llm_pipeline.verification.bench import Bench, look_at_container
from llm_pipeline.verification.comparisons import schema_differences
from llm_pipeline.verification.report import Row, Seen, take

Step = Callable[[], Seen]


def run_steps(bench: Bench, only: Collection[str] = ()) -> tuple[Row, ...]:
    """Run all steps, or some of them by name.

    Raises:
        ConfigError: A name is not one of a step.
    """
    steps = steps_of(bench)
    if unknown := sorted(set(only) - set(steps)):
        raise ConfigError(f"no such step: {', '.join(unknown)}", where="--only", hint=f"there are {', '.join(steps)}")
    return tuple(take(name, look) for name, look in steps.items() if not only or name in only)


def steps_of(bench: Bench) -> dict[str, Step]:
    """Every step by its name, as in docs/verification.md, in the order in which they run."""
    compiled = next(one for one in bench.prepared.checkpoints if one.recipe.tensorrt_llm_checkpoint)
    checkpoints = [one for one in bench.prepared.checkpoints if one is not compiled]
    baseline = checkpoints[0]
    return {
        "container": partial(look_at_container, bench),
        "build_flags": partial(engine_steps.compare_flags, bench),
        "llm_args_schema": partial(compare_llm_args, bench),
        **{f"load_{one.name}": partial(loading_steps.load, bench, one) for one in checkpoints},
        **{f"memory_{one.name}": partial(loading_steps.compare_memory, bench, one) for one in checkpoints},
        "time_limit": partial(loading_steps.stop_at_time_limit, bench, baseline),
        "triton_llmapi": partial(serving_steps.serve_llm_api, bench, baseline),
        "engine_build": partial(engine_steps.build, bench, compiled),
        "engine_timing_cache": partial(engine_steps.build_with_cache, bench, compiled),
        "engine_damaged_cache": partial(engine_steps.build_with_damaged_cache, bench, compiled),
        "triton_engine": partial(serving_steps.serve_engine, bench, compiled),
    }


def compare_llm_args(bench: Bench) -> Seen:
    """The real class's schema against the one recorded for its version; it is kept as `llm_args_schema.json`."""
    runtime = bench.runtime
    dialect = dialect_of(runtime.version)
    schema = runtime.llm_args_schema
    (bench.output / "llm_args_schema.json").write_text(json.dumps(schema, indent=1, sort_keys=True) + "\n")
    differences = schema_differences(recorded_schema(dialect).document, schema)
    text = f"{runtime.llm_args_class} of {runtime.version}: {len(schema.get('properties', {}))} keys, {dialect.schema}"
    return Seen(text, differences)
