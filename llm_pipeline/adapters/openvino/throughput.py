"""Real generations on a finished engine: does it load, what does it answer, and how fast. Heavy."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai

from llm_pipeline.artifacts.checkpoint_loading import load_confined
from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.errors import Unsupported
from llm_pipeline.config.target import EngineLimits
from llm_pipeline.engines.builder import Rates

_OUTPUT_TOKENS = 32
_PROMPT_TOKENS = 16
_MAXIMUM_BATCH = 16
_REPEATS = 3


def load_pipeline(
    engine: Path, limits: EngineLimits, properties: Mapping[str, str]
) -> genai.ContinuousBatchingPipeline:
    """The engine, as its server loads it.

    Raises:
        Unsupported: The engine does not load here.
        IntegrityError: Its files lead out of its directory, or it was about to read others.
    """
    try:
        return load_confined(
            engine, lambda: genai.ContinuousBatchingPipeline(engine, scheduler(limits), "CPU", dict(properties))
        )
    except RuntimeError as error:
        raise Unsupported(f"the engine does not load: {error}", where=str(engine)) from error


def answers(
    pipeline: genai.ContinuousBatchingPipeline, golden: Sequence[GoldenPrompt], end_tokens: Sequence[int]
) -> list[str]:
    """What the engine answers to the golden prompts, greedily."""
    tokenizer, handles = pipeline.get_tokenizer(), []
    for number, prompt in enumerate(golden):
        config = genai.GenerationConfig()
        config.max_new_tokens, config.apply_chat_template = prompt.maximum_tokens, False
        config.stop_token_ids = set(end_tokens)
        handles.append(pipeline.add_request(number, tokenizer.encode(prompt.prompt).input_ids, config))
    while pipeline.has_non_finished_requests():
        pipeline.step()
    generated = [[token for output in handle.read_all() for token in output.generated_ids] for handle in handles]
    texts: list[str] = tokenizer.decode(generated)
    return texts


def measure_throughput(pipeline: genai.ContinuousBatchingPipeline, limits: EngineLimits, context_length: int) -> Rates:
    """Generate with one request, then with a batch; the best of a few repeats each, after a warm-up.

    Raises:
        Unsupported: The engine does not generate what was asked.
    """
    vocabulary = len(pipeline.get_tokenizer().get_vocab())
    output_tokens = min(_OUTPUT_TOKENS, context_length - _PROMPT_TOKENS)
    sequences = min(limits.maximum_sequences, _MAXIMUM_BATCH)
    _rate(pipeline, 1, output_tokens, vocabulary)
    return Rates(
        single=max(_rate(pipeline, 1, output_tokens, vocabulary) for _ in range(_REPEATS)),
        batched=max(_rate(pipeline, sequences, output_tokens, vocabulary) for _ in range(_REPEATS)),
        sequences=sequences,
    )


def scheduler(limits: EngineLimits) -> genai.SchedulerConfig:
    """The in-flight batcher's configuration, as the serving model sets it."""
    config = genai.SchedulerConfig()
    config.max_num_seqs = limits.maximum_sequences
    config.max_num_batched_tokens = limits.maximum_batched_tokens
    if limits.kv_cache_blocks is not None:
        config.num_kv_blocks = limits.kv_cache_blocks
    config.dynamic_split_fuse = True
    config.enable_prefix_caching = False
    return config


def _rate(pipeline: genai.ContinuousBatchingPipeline, sequences: int, output_tokens: int, vocabulary: int) -> float:
    """Output tokens a second of `sequences` requests that start together, each with its own prompt."""
    generation = genai.GenerationConfig()
    generation.max_new_tokens, generation.ignore_eos, generation.apply_chat_template = output_tokens, True, False
    draws = np.random.default_rng(0).integers(0, vocabulary, (sequences, 1, _PROMPT_TOKENS), dtype=np.int64)
    handles = [pipeline.add_request(number, ov.Tensor(ids), generation) for number, ids in enumerate(draws)]
    started = time.monotonic()
    while pipeline.has_non_finished_requests():
        pipeline.step()
    seconds = time.monotonic() - started
    produced = sum(len(output.generated_ids) for handle in handles for output in handle.read_all())
    if produced != sequences * output_tokens:
        raise Unsupported(
            f"the engine generated {produced} tokens where {sequences * output_tokens} were requested",
            where="measurement after the build",
            hint="raise limits.kv_cache_blocks if it is set",
        )
    return round(produced / seconds, 1)
