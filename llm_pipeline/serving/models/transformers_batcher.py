"""A checkpoint that generates in flight, by Transformers' continuous batching with its paged KV cache.

This file is copied into a model repository as `batcher.py`, beside `llm/1/model.py`, and the engine builder measures
with it: what was measured is what serves. It stands alone: standard library, torch and transformers (5.5 to 5.17).

    batcher = Batcher(checkpoint, Settings(...))
    batcher.submit("1", prompt, maximum_tokens=16)
    for output in batcher.outputs(timeout_seconds=0.1): ...

Transformers starts more than its cache can hold, and then computes the displaced requests again (5.5 ends their
streams too early when it does). So a request is to be submitted only when `has_room` for its whole answer.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, ContinuousBatchingConfig, GenerationConfig

BLOCK_TOKENS = 256
VARLEN_ATTENTION = "paged|varlen"
NO_END_TOKEN = -1
QUEUES = False
"""Whether requests may be submitted from any thread, before the cache has room for them."""
SAMPLES = False
"""Whether requests may have a temperature."""

WARM_UP_TOKENS = 2
WARM_UP_SECONDS = 300.0
STOP_SECONDS = 5.0


@dataclass(frozen=True)
class Settings:
    """How a checkpoint is loaded and batched.

    Attributes:
        device: `cuda` or `cpu`.
        dtype: Of weights, activations and KV cache, in torch's words.
        attention: `paged|varlen` (CUDA only), `paged|sdpa` or `paged|eager`.
        cuda_graphs: Replay captured steps; needs `paged|varlen`.
        maximum_sequences: Requests in the batch.
        maximum_tokens_per_request: Prompt and answer together.
        maximum_batched_tokens: Tokens of one step.
        cache_blocks: Blocks of 256 tokens in the KV cache; 0 for what the GPU's memory holds, or all sequences need.
        threads: Of the CPU.
    """

    device: str
    dtype: str
    attention: str
    cuda_graphs: bool
    maximum_sequences: int
    maximum_tokens_per_request: int
    maximum_batched_tokens: int
    cache_blocks: int = 0
    threads: int = 1

    @staticmethod
    def of(properties: Mapping[str, str], limits: Mapping[str, int], engine: Path | None = None) -> Settings:  # noqa: ARG004 - others keep files there
        """From the runtime properties of `engine.json`, the engine's limits, and its directory."""
        return Settings(
            device=properties["device"],
            dtype=properties["dtype"],
            attention=properties["attention"],
            cuda_graphs=properties["cuda_graphs"] == "true",
            maximum_sequences=limits["maximum_sequences"],
            maximum_tokens_per_request=limits["maximum_tokens_per_request"],
            maximum_batched_tokens=limits["maximum_batched_tokens"],
            cache_blocks=limits["kv_cache_blocks"],
            threads=int(properties["threads"]),
        )


@dataclass(frozen=True)
class Output:
    """What one request generated since it was last asked for.

    Attributes:
        name: The request's.
        tokens: New ones.
        finish_reason: `stop` or `length` with the last one, empty before.
        error: Why it failed; empty when it did not.
    """

    name: str
    tokens: list[int]
    finish_reason: str = ""
    error: str = ""


@dataclass
class _Request:
    blocks: int
    seen: int = 0


class Batcher:
    """A loaded model, its cache, and the thread that steps them.

    Attributes:
        tokenizer: The checkpoint's.
        waiting: Requests that were submitted and wait: none, as no more are to be submitted than fit.
        preemptions: Requests that lost their place in the batch: none, for the same reason.
    """

    waiting = preemptions = 0

    def __init__(self, checkpoint: Path, settings: Settings) -> None:
        """Load, and generate a little, so that the first request does not pay for what is set up once.

        Raises:
            RuntimeError: The checkpoint lacks tensors, or the model does not generate.
            MemoryError: The cache does not fit.
        """
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
        transformers.utils.logging.disable_progress_bar()
        if settings.device == "cpu":
            torch.set_num_threads(settings.threads)
        if settings.attention == VARLEN_ATTENTION:
            transformers.AttentionInterface.register(VARLEN_ATTENTION, varlen_attention)
        self._settings = settings
        self.tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True, trust_remote_code=False)
        self._model, report = AutoModelForCausalLM.from_pretrained(
            checkpoint,
            dtype=getattr(torch, settings.dtype),
            device_map=settings.device,
            attn_implementation=settings.attention,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        if missing := sorted(report["missing_keys"]):  # Transformers made them up
            raise RuntimeError(f"the checkpoint lacks {len(missing)} tensors of the model: {missing[:5]}")
        self._end_tokens = _end_tokens(self._model.generation_config, self.tokenizer)
        self._requests: dict[str, _Request] = {}
        self._reserved = 0
        self._manager: Any = None
        self.start()

    def start(self) -> None:
        """Start with an empty cache; also after a failure."""
        self._requests.clear()
        self._reserved, self._manager = 0, None  # the old cache's memory goes before the new one's comes
        generation = GenerationConfig(do_sample=False, eos_token_id=NO_END_TOKEN, max_new_tokens=1)
        manager = self._model.init_continuous_batching(generation, continuous_batching_config=self._batching())
        if self._settings.cuda_graphs:
            manager.warmup()
        manager.start()
        manager.add_request(_warm_up_prompt(self.tokenizer), "warm-up", max_new_tokens=WARM_UP_TOKENS)
        warm = manager.get_result(timeout=WARM_UP_SECONDS)
        if warm is None or warm.error or len(warm.generated_tokens) != WARM_UP_TOKENS:
            manager.stop(block=False)
            raise RuntimeError(f"the model does not generate: {warm.error if warm else 'no answer'}")
        self._manager = manager
        self._outbox: queue.Queue[Any] = manager.output_router.output_queue

    @property
    def longest(self) -> int:
        return self._settings.maximum_tokens_per_request

    @property
    def blocks(self) -> int:
        return int(self._manager.batch_processor.cache.num_blocks)

    @property
    def cache_usage(self) -> float:
        """Share of the cache that holds tokens, from 0 to 1."""
        cache = self._manager.batch_processor.cache
        return 1.0 - float(cache.get_num_free_blocks()) / self.blocks

    @property
    def is_running(self) -> bool:
        """Whether the thread lives: it ends when a step fails."""
        return bool(self._manager.is_running())

    def fits(self, tokens: int) -> bool:
        """Whether an empty cache could hold a prompt and its answer."""
        return _blocks_for(tokens) <= self.blocks

    def has_room(self, tokens: int) -> bool:
        """Whether one more prompt with its answer can start now."""
        return (
            len(self._requests) < self._settings.maximum_sequences
            and self._reserved + _blocks_for(tokens) <= self.blocks
        )

    def submit(
        self,
        name: str,
        prompt: list[int],
        maximum_tokens: int,
        *,
        ignore_eos: bool = False,
        temperature: float = 0.0,
    ) -> None:
        """Start a request; its temperature must be 0."""
        if temperature:
            raise ValueError("Transformers' batches decode greedily")
        blocks = _blocks_for(len(prompt) + maximum_tokens)
        self._requests[name] = _Request(blocks)
        self._reserved += blocks
        self._manager.add_request(
            prompt,
            name,
            max_new_tokens=maximum_tokens,
            streaming=True,
            eos_token_id=NO_END_TOKEN if ignore_eos else self._end_tokens,
        )

    def cancel(self, name: str) -> None:
        """End a request; no more output of it is returned."""
        if self._forget(name):
            self._manager.cancel_request(name)

    def wake(self) -> None:
        """Make a waiting `outputs` return at once."""
        self._outbox.put(None)

    def outputs(self, timeout_seconds: float) -> list[Output]:
        collected: dict[str, Output] = {}
        for received in self._received(timeout_seconds):
            if received is not None and (output := self._read(received)):
                collected[output.name] = _joined(collected.get(output.name), output)
        return list(collected.values())

    def stop(self) -> None:
        """End all requests and the thread that steps the batch."""
        for name in list(self._requests):
            self.cancel(name)
        if self._manager is not None:
            self._manager.stop(block=True, timeout=STOP_SECONDS)

    def _received(self, timeout_seconds: float) -> Iterator[Any]:
        try:
            yield self._outbox.get(timeout=timeout_seconds)
            while True:
                yield self._outbox.get_nowait()
        except queue.Empty:
            return

    def _read(self, received: Any) -> Output | None:
        request = self._requests.get(received.request_id)
        if request is None:
            return None
        tokens = received.generated_tokens[request.seen :]
        request.seen += len(tokens)
        if received.error:
            self._forget(received.request_id)
            return Output(received.request_id, [], error=received.error)
        if not received.is_finished():
            return Output(received.request_id, tokens)
        self._forget(received.request_id)
        ended = bool(received.generated_tokens) and received.generated_tokens[-1] in self._end_tokens
        return Output(received.request_id, tokens, "stop" if ended else "length")

    def _forget(self, name: str) -> bool:
        request = self._requests.pop(name, None)
        if request is not None:
            self._reserved -= request.blocks
        return request is not None

    def _batching(self) -> ContinuousBatchingConfig:
        settings = self._settings
        enough = settings.maximum_sequences * _blocks_for(settings.maximum_tokens_per_request)
        wanted = {
            "block_size": BLOCK_TOKENS,
            "num_blocks": settings.cache_blocks or (enough if settings.device == "cpu" else None),
            "max_batch_tokens": settings.maximum_batched_tokens,
            "max_requests_per_batch": settings.maximum_sequences,
            "allow_block_sharing": False,
            "use_async_batching": False,
            "use_cuda_graph": settings.cuda_graphs,
            "safety_margin": 0.0,
        }
        known = {field.name for field in dataclasses.fields(ContinuousBatchingConfig)}
        return ContinuousBatchingConfig(**{name: value for name, value in wanted.items() if name in known})


def varlen_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _: None,
    *,
    cache: Any,
    cu_seq_lens_q: torch.Tensor,
    cu_seq_lens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    read_index: list[torch.Tensor],
    write_index: list[torch.Tensor],
    scaling: float | None = None,
    **unused: Any,  # noqa: ARG001
) -> tuple[torch.Tensor, None]:
    """Attention of the whole batch by torch's own variable-length FlashAttention kernel, each request by itself.

    `paged|sdpa` lets every query look at the keys of all requests and masks the others': its cost grows with the
    square of the batch. Transformers' own way out needs the package flash-attn.

    Args:
        module: The attention layer.
        query: [1, heads, tokens, head size].
        key: [1, key and value heads, tokens, head size].
        value: As `key`.
        _: No mask: the lengths say it all.
        cache: The paged cache, which takes the new keys and values and gives all of them.
        cu_seq_lens_q: Where each request's queries begin, [requests + 1].
        cu_seq_lens_k: Where its keys begin, [requests + 1].
        max_seqlen_q: Most queries of a request.
        max_seqlen_k: Most keys of a request.
        read_index: By group of layers: where the keys lie in the cache.
        write_index: By group of layers: where the new ones go.
        scaling: Of the scores.
        unused: What other kernels need.

    Returns:
        [1, tokens, heads, head size], and no weights.
    """
    keys, values = cache.update(
        key_states=key, value_states=value, layer_idx=module.layer_idx, read_index=read_index, write_index=write_index
    )
    queries = query.squeeze(0).transpose(0, 1).contiguous()
    lengths = cu_seq_lens_q.to(torch.int32), cu_seq_lens_k.to(torch.int32)
    output = torch.ops.aten._flash_attention_forward(  # noqa: SLF001 - torch.nn.attention.varlen is new, and moves
        queries, keys.contiguous(), values.contiguous(), *lengths, max_seqlen_q, max_seqlen_k, 0.0, True, False,
        scale=scaling,
    )[0]  # fmt: skip
    return output.unsqueeze(0), None


def _blocks_for(tokens: int) -> int:
    """The most blocks that Transformers' scheduler takes for so many tokens: one more than they fill."""
    return tokens // BLOCK_TOKENS + 2


def _joined(earlier: Output | None, later: Output) -> Output:
    return dataclasses.replace(later, tokens=earlier.tokens + later.tokens) if earlier else later


def _end_tokens(generation: GenerationConfig, tokenizer: Any) -> list[int]:
    """The ids that end an answer: the checkpoint's own, else its tokenizer's; none is legal."""
    ids = generation.eos_token_id
    if ids is None:
        ids = tokenizer.eos_token_id
    if ids is None:
        return []
    return list(ids) if isinstance(ids, (list, tuple)) else [int(ids)]


def _warm_up_prompt(tokenizer: Any) -> list[int]:
    """A few tokens that any vocabulary has."""
    return [number % len(tokenizer) for number in range(1, 9)]
