"""The measurement at the end of a build: whether the loaded model answers as the judged checkpoint, and how fast."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple, Protocol, TypeVar

from llm_pipeline.artifacts.checkpoint_files import read_quantization
from llm_pipeline.artifacts.engine_description import EngineFacts
from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.artifacts.host_facts import HostFacts
from llm_pipeline.base.errors import IntegrityError, Unsupported
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.target import EngineLimits, Target
from llm_pipeline.engines.builder import BuildInputs

log = get_logger(__name__)
LEAST_GOLDEN_MATCH = 0.5
"""Runtimes differ in kernels and batch sizes, so greedy texts part at near ties; a broken load matches nothing."""

_MEASURED_TOKENS = 128
_MOST_SEQUENCES = 64
_POLL_SECONDS = 1.0


def golden_match(golden: Sequence[GoldenPrompt], completions: Sequence[str]) -> float:
    """Share of the golden prompts that were answered alike, compared as the probes do.

    Raises:
        IntegrityError: It is below the floor.
    """
    pairs = list(zip(golden, completions, strict=True))
    different = [(prompt, text) for prompt, text in pairs if len(set(prompt.compared(text))) > 1]
    fraction = 1 - len(different) / len(pairs)
    log.info("compared with the golden prompts", prompts=len(pairs), golden_match_fraction=fraction)
    if fraction < LEAST_GOLDEN_MATCH:
        prompt, text = different[0]
        raise IntegrityError(
            f"the loaded model answers {fraction:.0%} of {len(pairs)} golden prompts as the checkpoint that was judged "
            f"({LEAST_GOLDEN_MATCH:.0%} are needed): to {prompt.prompt!r} it wrote {text!r} "
            f"instead of {prompt.completion!r}",
            hint="the runtime reads the checkpoint in another way: look at its quantization, tokenizer and options",
        )
    return fraction


class BatchedOutput(Protocol):
    """What one request generated; see the batchers of `serving/models`."""

    @property
    def name(self) -> str:
        """The request's name."""

    @property
    def tokens(self) -> list[int]:
        """Tokens since the last output of the request."""

    @property
    def finish_reason(self) -> str:
        """`stop` or `length` with the last token, empty before."""

    @property
    def error(self) -> str:
        """Why the request failed; empty if it did not."""


class TokenBatcher(Protocol):
    """A loaded checkpoint that generates in flight."""

    tokenizer: Any

    @property
    def blocks(self) -> int:
        """Number of blocks of the KV cache."""

    @property
    def longest(self) -> int:
        """Most tokens of a prompt and its answer."""

    @property
    def is_running(self) -> bool:
        """Whether the engine or its thread is alive."""

    def has_room(self, tokens: int) -> bool:
        """Whether a request of so many tokens may be submitted."""

    def submit(self, name: str, prompt: list[int], maximum_tokens: int, *, ignore_eos: bool) -> None:
        """Start a request; its output comes from `outputs`."""

    def outputs(self, timeout_seconds: float) -> Sequence[BatchedOutput]:
        """Output since the last call, waiting for the first of it; empty at the time limit."""

    def stop(self) -> None:
        """End all requests, and the engine or its thread."""


class Rates(NamedTuple):
    """Output tokens a second of one request alone, and of `sequences` together."""

    single: float
    batched: float
    sequences: int


BatcherT = TypeVar("BatcherT", bound=TokenBatcher)


def measured_build(
    inputs: BuildInputs,
    load: Callable[[], BatcherT],
    facts: Callable[[BatcherT], dict[str, Any]],
    host: HostFacts | None,
) -> EngineFacts:
    """Load a checkpoint that is served as it is, compare it with its golden prompts, measure it and end it.

    Args:
        inputs: What the engine is built from.
        load: Starts the batcher that will serve it.
        facts: What the builder itself knows of the loaded batcher: fields of `EngineFacts`.
        host: The target's; None for a CPU.

    Raises:
        IntegrityError: It does not answer as the checkpoint that was judged.
        Unsupported: It does not load, or nothing fits into its KV cache.
    """
    target, started = inputs.target, time.monotonic()
    batcher = load()
    loaded = time.monotonic()
    try:
        smoke = Smoke(batcher, inputs.golden, target)
        answered = time.monotonic()
        rates = smoke.measure(target.limits.maximum_sequences)
    finally:
        batcher.stop()  # its thread would keep this process alive
    seconds = {"load": loaded - started, "golden": answered - loaded, "measure": time.monotonic() - answered}
    own = facts(batcher)
    details = {
        "load_seconds": round(seconds["load"], 3),
        "checkpoint_bytes": sum(path.stat().st_size for path in inputs.checkpoint.glob("*.safetensors")),
        "kv_cache_blocks": smoke.blocks,
        "golden_match_fraction": smoke.golden_match_fraction,
        "golden_prompts": len(inputs.golden),
        **own.pop("details"),
    }
    return EngineFacts(
        builder=target.engine,
        bytes=0,
        weight_format=target.weight_format,
        quantization=read_quantization(inputs.checkpoint).algorithm,
        device=host.gpus[0].name if host else platform.processor() or platform.machine(),
        seconds={phase: round(spent, 3) for phase, spent in seconds.items()},
        single_stream_tokens_per_second=rates.single,
        batched_tokens_per_second=rates.batched,
        batched_sequences=rates.sequences,
        details=details,
        **own,
    )


def served_limits(limits: EngineLimits, context_length: int) -> dict[str, int]:
    """A target's limits as batchers take them: no longer than the model, and 0 where the runtime chooses."""
    longest = min(limits.maximum_tokens_per_request, context_length)
    return {
        **limits.model_dump(),
        "maximum_tokens_per_request": longest,
        "kv_cache_blocks": limits.kv_cache_blocks or 0,
    }


class Smoke:
    """Compares a loaded checkpoint with its golden prompts, and measures its speed.

    Attributes:
        blocks: Of its KV cache.
        golden_match_fraction: Of the golden prompts; None without any.
    """

    def __init__(self, batcher: TokenBatcher, golden: Sequence[GoldenPrompt], target: Target) -> None:
        self._batcher, self.blocks = batcher, batcher.blocks
        self._vocabulary = len(batcher.tokenizer)
        self._draw = Random(0)  # noqa: S311 - prompts of a measurement
        self.golden_match_fraction = self._answer(golden, target)

    def measure(self, maximum_sequences: int) -> Rates:
        """Measure one request alone, and as many together as are allowed, after a warm-up."""
        sequences = min(maximum_sequences, _MOST_SEQUENCES)
        self._rate(1)
        return Rates(self._rate(1), self._rate(sequences), sequences)

    def _rate(self, sequences: int) -> float:
        """Output tokens a second of requests that start together, each with its own prompt, prompts included."""
        tokens = min(_MEASURED_TOKENS, self._batcher.longest // 2)
        prompts = [[self._draw.randrange(self._vocabulary) for _ in range(tokens)] for _ in range(sequences)]
        started = time.monotonic()
        answers = self._generate(prompts, [tokens] * sequences, ignore_eos=True)
        produced = sum(map(len, answers))
        if produced != sequences * tokens:
            raise IntegrityError(f"the model wrote {produced} tokens where {sequences * tokens} were requested")
        return round(produced / (time.monotonic() - started), 1)

    def _answer(self, golden: Sequence[GoldenPrompt], target: Target) -> float | None:
        if not golden:
            return None
        tokenizer, serving = self._batcher.tokenizer, target.serving
        prompts = [tokenizer.encode(one.prompt, add_special_tokens=serving.add_special_tokens) for one in golden]
        answers = self._generate(prompts, [one.maximum_tokens for one in golden], ignore_eos=False)
        texts = tokenizer.batch_decode(answers, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return golden_match(golden, texts)

    def _generate(self, prompts: Sequence[list[int]], most: Sequence[int], *, ignore_eos: bool) -> list[list[int]]:
        answers: list[list[int]] = [[] for _ in prompts]
        waiting, running = list(range(len(prompts))), set[int]()
        while waiting or running:
            while waiting and self._batcher.has_room(len(prompts[waiting[0]]) + most[waiting[0]]):
                number = waiting.pop(0)
                running.add(number)
                self._batcher.submit(str(number), prompts[number], most[number], ignore_eos=ignore_eos)
            if not running:
                raise Unsupported("a request does not fit into the KV cache", hint="raise limits.kv_cache_blocks")
            for output in self._batcher.outputs(_POLL_SECONDS):
                answers[int(output.name)] += output.tokens
                if output.error:
                    raise IntegrityError(f"the model failed: {output.error}")
                if output.finish_reason:
                    running.discard(int(output.name))
            if not self._batcher.is_running:
                raise IntegrityError("the model's thread ended", hint="look at its log")
        return answers
