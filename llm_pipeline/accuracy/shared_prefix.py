"""Log-likelihoods of continuations, each context computed once for all of them.

    scores = score_continuations(model, [(context, continuation), ...], BatchSize.for_model(model))

A multiple-choice item of four choices is one row of a batch instead of four sequences, so it takes about a quarter of
the work; see `token_rows`. The LM head runs on the columns that are scored, and nothing else. The logits come from the
model's own forward pass: only its attention mask and position ids are given by us, which not every architecture
honours. `why_not_shared` says for a model whether it does, by its configuration and by trying it.

How much goes into one forward pass follows from the free memory of the device; it is halved when memory runs out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from llm_pipeline.accuracy.token_rows import Batch, Row, Tokens, batch_of, pack_rows
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


_LOGITS_AT_ONCE = 2**26
"""Logits that are turned to float32 at a time: 256 MiB."""
_MEAN_DIFFERENCE = {torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.15}
"""Noise of one forward pass against another, in nats a token; a wrong mask is an order of magnitude beyond."""


@dataclass(frozen=True)
class Score:
    """The log-likelihood of one continuation after its context.

    Attributes:
        log_likelihood: Natural logarithm, summed over the continuation's tokens.
        greedy: Each token is the likeliest one at its place.
    """

    log_likelihood: float
    greedy: bool


def score_continuations(
    model: Any,
    requests: Sequence[tuple[Tokens, Tokens]],
    batch_size: BatchSize,
    finished: Callable[[int], None] = lambda _: None,
) -> list[Score]:
    """Score continuations, each after its context, several in one forward pass.

    Args:
        model: A causal language model of Transformers, for which `why_not_shared` is None.
        requests: Context and continuation of each, as tokens; neither is empty.
        batch_size: How much fits into a forward pass; halved when the device's memory runs out.
        finished: Told how many requests each batch finished.

    Raises:
        Unsupported: Not even one row fits into the device's memory.
    """
    log_likelihoods = np.zeros(len(requests))
    misses = np.zeros(len(requests), dtype=np.int64)

    def score(rows: Sequence[Row]) -> None:
        batch = batch_of(rows)
        values, hits = _score_batch(model, batch)
        wanted = batch.scores[3]
        np.add.at(log_likelihoods, wanted, values)
        np.add.at(misses, wanted, ~hits)
        finished(sum(row.requests for row in rows))

    out_of_memory_halves(score, pack_rows(requests), batch_size)
    return [Score(float(value), not missed) for value, missed in zip(log_likelihoods, misses, strict=True)]


def _score_batch(model: Any, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Log-probability of each wanted token, and whether it is the likeliest: both `[scores]`."""
    device, dtype = model.device, model.dtype
    contexts = torch.from_numpy(batch.contexts).to(device)
    continuations = torch.from_numpy(batch.continuations).to(device)
    positions = torch.from_numpy(batch.positions).to(device)
    with torch.inference_mode():
        logits = model(
            input_ids=torch.from_numpy(batch.tokens).to(device),
            attention_mask=_mask(contexts, continuations, positions, dtype),
            position_ids=positions,
            use_cache=False,
            logits_to_keep=batch.columns,
        ).logits
        at_once = max(1, _LOGITS_AT_ONCE // logits.shape[-1])
        places = torch.from_numpy(batch.scores).to(logits.device).split(at_once, dim=1)
        portions = [_log_probabilities(logits[row, column], wanted) for row, column, wanted, _ in places]
    values, hits = (torch.cat(parts).cpu().numpy() for parts in zip(*portions, strict=True))
    return values.astype(np.float64), hits


def _log_probabilities(logits: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.float()
    chosen = logits.gather(-1, wanted[:, None])[:, 0]
    return chosen - logits.logsumexp(-1), logits.argmax(-1) == wanted


def _mask(contexts: Tensor, continuations: Tensor, positions: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to the attention scores, `[rows, 1, columns, columns]`: zero where a token may look, else very low.

    A token may look at the shared beginning, at its own context, and there at its own continuation, up to itself.
    """
    allowed = positions[:, None, :] <= positions[:, :, None]
    for groups, everyones in ((contexts, 0), (continuations, 0)):
        allowed &= (groups[:, None, :] == groups[:, :, None]) | (groups == everyones)[:, None, :]
    mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return mask.masked_fill_(~allowed, torch.finfo(dtype).min)[:, None]


def why_not_shared(model: Any, maximum_length: int) -> str | None:
    """Why sequences of up to so many tokens cannot be scored with shared prefixes, or None if they can."""
    config = model.config.get_text_config()
    parameters = inspect.signature(model.forward).parameters
    if missing := sorted({"position_ids", "logits_to_keep", "attention_mask"} - parameters.keys()):
        return f"its forward pass takes no {', '.join(missing)}"
    if str(config._attn_implementation).startswith(("flash", "flex", "paged")):  # noqa: SLF001
        return f"its attention is {config._attn_implementation}, which takes no mask"  # noqa: SLF001
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    layers = set(getattr(config, "layer_types", None) or ())
    if window is not None and window < maximum_length and (not layers or "sliding_attention" in layers):
        return f"its attention looks back {window} tokens only"
    if other := sorted(layers - {"full_attention", "sliding_attention"}):
        return f"it has layers of other kinds than attention: {', '.join(other)}"
    difference = _trial(model)
    tolerance = _MEAN_DIFFERENCE.get(model.dtype, max(_MEAN_DIFFERENCE.values()))
    return None if difference <= tolerance else f"a trial differs by {difference:.3g} nats per token from a plain pass"


def _trial(model: Any) -> float:
    """Mean difference of a few log-probabilities, shared prefixes against plain sequences."""
    draws = np.random.default_rng(0)
    vocabulary = model.config.get_text_config().vocab_size

    def words(count: int) -> Tokens:
        return tuple(int(token) for token in draws.integers(0, vocabulary, count))

    beginning = words(40)
    contexts = [(*beginning, *words(7)), (*beginning, *words(12)), words(5)]
    requests = [(context, words(count)) for context in contexts for count in (1, 4, 6)]
    shared = score_continuations(model, requests, BatchSize(requests=len(requests)))
    plain = [_plain(model, context, continuation) for context, continuation in requests]
    per_token = [
        abs(score.log_likelihood - value) / len(continuation)
        for score, value, (_, continuation) in zip(shared, plain, requests, strict=True)
    ]
    return float(np.mean(per_token))


def _plain(model: Any, context: Tokens, continuation: Tokens) -> float:
    tokens = torch.tensor([context + continuation], device=model.device)
    with torch.inference_mode():
        logits = model(tokens[:, :-1]).logits[0, len(context) - 1 :]
    values, _ = _log_probabilities(logits, tokens[0, len(context) :].to(logits.device))
    return float(values.sum())
