"""Log-likelihoods of continuations, each context computed once for all of them.

    scores = score_continuations(model, [(context, continuation), ...], BatchSize.for_model(model))

A multiple-choice item of four choices is one row of a batch instead of four sequences, so it takes about a quarter of
the work; see `token_rows`. The LM head runs on the columns that are scored, and nothing else. The logits come from the
model's own forward pass: only its attention mask and position ids are given by us, which not every architecture
honours. `why_not_shared` says for a model whether it does, by its configuration and by trying it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llm_pipeline.accuracy.batch_size import BatchSize, out_of_memory_halves
from llm_pipeline.accuracy.token_rows import Batch, Row, Tokens, batch_of, pack_rows
from llm_pipeline.base.logging import get_logger

log = get_logger(__name__)

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
