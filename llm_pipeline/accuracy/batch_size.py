"""How much goes into one forward pass: from the free memory of the device, and half of it when memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from llm_pipeline.accuracy.token_rows import Row
from llm_pipeline.base.errors import Unsupported
from llm_pipeline.base.logging import get_logger
from llm_pipeline.quantization.device_memory import free_bytes

log = get_logger(__name__)

_GPU_TOKENS = 16_384
"""A GPU has enough to do with so many; more would only fill up shorter rows to longer ones."""
_CPU_TOKENS = 4_096
_CPU_SEQUENCES = 64
_GPU_SEQUENCES = 256
_SHARE = 0.6
"""Of the free memory; the rest is for fragments and for what a kernel needs beside its results."""


@dataclass(frozen=True)
class BatchSize:
    """What may be in one forward pass.

    Attributes:
        requests: Most requests; None for any number.
        tokens: Most tokens, filling included; None for any number.
        bytes: Most memory that activations and logits may take; None for any amount.
        token_bytes: What a token takes while it passes through the layers.
        logit_bytes: What the logits of a scored token take.
    """

    requests: int | None = None
    tokens: int | None = None
    bytes: int | None = None
    token_bytes: int = 0
    logit_bytes: int = 0

    @classmethod
    def for_model(cls, model: Any, wanted: int | Literal["auto"]) -> BatchSize:
        """So many requests; or, with `auto`, what fits into the free memory of the model's device."""
        if model.device.type != "cuda":
            return cls(requests=wanted) if wanted != "auto" else cls(tokens=_CPU_TOKENS)
        config = model.config.get_text_config()
        inner = 3 * getattr(config, "intermediate_size", 4 * config.hidden_size)
        return cls(
            requests=None if wanted == "auto" else wanted,
            tokens=_GPU_TOKENS if wanted == "auto" else None,
            bytes=int(_SHARE * free_bytes(model.device)),
            token_bytes=(inner + 16 * config.hidden_size) * model.dtype.itemsize,
            logit_bytes=config.vocab_size * model.dtype.itemsize,
        )

    def halved(self) -> BatchSize:
        """Half as much; counts stay at least one."""
        half = {name: max(1, value // 2) for name in ("requests", "tokens", "bytes") if (value := getattr(self, name))}
        return BatchSize(token_bytes=self.token_bytes, logit_bytes=self.logit_bytes, **half)

    def take(self, rows: Sequence[Row], start: int) -> Sequence[Row]:
        """The rows from `start` that go into one pass: at least one, however large. `rows` has the longest first."""
        longest, requests, scored, end = rows[start].length, 0, 0, start
        while end < len(rows):
            count = end + 1 - start
            requests, scored = requests + rows[end].requests, max(scored, rows[end].scored)
            if count > 1 and self._is_beyond(requests, longest * count, scored * count):
                break
            end += 1
        return rows[start:end]

    def _is_beyond(self, requests: int, tokens: int, scored: int) -> bool:
        used = tokens * self.token_bytes + scored * self.logit_bytes
        limits = ((requests, self.requests), (tokens, self.tokens), (used, self.bytes))
        return any(limit is not None and value > limit for value, limit in limits)


def sequences_that_fit(model: Any, tokens: int, wanted: int | Literal["auto"]) -> int:
    """How many sequences of `tokens` tokens are generated together: what was wanted, or what fits with `auto`."""
    if wanted != "auto":
        return wanted
    if model.device.type != "cuda":
        return _CPU_SEQUENCES
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cached = 2 * config.num_hidden_layers * heads * width * model.dtype.itemsize
    needed = int(tokens * (2 * cached + 8 * config.hidden_size * model.dtype.itemsize))
    return max(1, min(_GPU_SEQUENCES, int(_SHARE * free_bytes(model.device)) // needed))


def out_of_memory_halves(run: Callable[[Sequence[Row]], None], rows: Sequence[Row], batch_size: BatchSize) -> None:
    """Run all rows batch by batch; when the device's memory runs out, go on from there with half the batch.

    Raises:
        Unsupported: A single row does not fit.
    """
    start = 0
    while start < len(rows):
        batch = batch_size.take(rows, start)
        try:
            run(batch)
        except torch.OutOfMemoryError as error:
            if len(batch) == 1:
                raise Unsupported(
                    f"a sequence of {batch[0].length} tokens does not fit into the device's memory",
                    where=str(error).split(". ")[0],
                    hint="lower evaluation.maximum_length, or use a device with more memory",
                ) from error
            batch_size = replace(batch_size, tokens=batch[0].length * len(batch) // 2)
            torch.cuda.empty_cache()
            log.warning("out of device memory: the batch is halved", rows=len(batch))
            continue
        start += len(batch)
