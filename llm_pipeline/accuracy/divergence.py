"""How far a candidate's distribution of tokens is from its baseline's, on the same texts.

Of the baseline the likeliest tokens of each position are kept, and the rest as one sum. The Kullback-Leibler divergence
computed from them is a lower bound of the true one: lumping outcomes together never adds divergence (data processing
inequality). It is information, never the gate: near the baseline it does not predict the score.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llm_pipeline.accuracy.evaluation import Divergence
from llm_pipeline.base.errors import IntegrityError

REFERENCE_FILE = "divergence.npz"
_KEPT = 64
_POSITIONS_AT_ONCE = 256


@dataclass(frozen=True)
class Reference:
    """What the baseline says about some texts.

    Attributes:
        texts: Token ids of each.
        likeliest: `[positions, kept]` ids of the likeliest next tokens, texts one after the other.
        log_probabilities: `[positions, kept]` of those.
        next_token: `[positions]` log-probability of the token that follows in the text.
    """

    texts: tuple[tuple[int, ...], ...]
    likeliest: np.ndarray
    log_probabilities: np.ndarray
    next_token: np.ndarray

    @property
    def perplexity(self) -> float:
        """Of the texts, by the baseline."""
        return float(np.exp(-self.next_token.mean(dtype=np.float64)))

    def write(self, directory: Path) -> None:
        """Write it into the evaluation's directory."""
        np.savez_compressed(
            directory / REFERENCE_FILE,
            tokens=np.asarray([token for text in self.texts for token in text], dtype=np.int32),
            lengths=np.asarray([len(text) for text in self.texts], dtype=np.int32),
            likeliest=self.likeliest,
            log_probabilities=self.log_probabilities,
            next_token=self.next_token,
        )

    @classmethod
    def read(cls, directory: Path) -> Reference | None:
        """Read it back; None where the evaluation has none.

        Raises:
            IntegrityError: The file is damaged.
        """
        path = directory / REFERENCE_FILE
        if not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as stored:
                ends = np.cumsum(stored["lengths"])
                texts = tuple(tuple(map(int, part)) for part in np.split(stored["tokens"], ends[:-1]))
                return cls(texts, *(stored[name] for name in ("likeliest", "log_probabilities", "next_token")))
        except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
            raise IntegrityError(f"unreadable: {error}", where=str(path)) from error


def reference_of(model: Any, texts: Sequence[Sequence[int]]) -> Reference:
    """What a model says about texts of at least two tokens each.

    Raises:
        IntegrityError: A log-probability is NaN or infinite.
    """
    likeliest, kept, following = [], [], []
    for logs, wanted in _log_probabilities(model, texts):
        top = logs.topk(min(_KEPT, logs.shape[-1]), dim=-1)
        likeliest.append(top.indices.int().cpu().numpy())
        kept.append(top.values.cpu().numpy())
        following.append(logs.gather(-1, wanted[:, None])[:, 0].cpu().numpy())
    reference = Reference(
        tuple(tuple(text) for text in texts), *(np.concatenate(parts) for parts in (likeliest, kept, following))
    )
    if not np.isfinite(reference.next_token).all():
        raise IntegrityError("log-probabilities are NaN or infinite", where="texts of the divergence")
    return reference


def divergence_from(reference: Reference, model: Any) -> Divergence:
    """A candidate's distance from the baseline.

    A candidate that is NaN somewhere has a divergence of None: no number would be true.
    """
    divergences, agreed, following, start = [], 0, [], 0
    for logs, wanted in _log_probabilities(model, reference.texts):
        part = slice(start, start + len(logs))
        start += len(logs)
        ids = torch.from_numpy(reference.likeliest[part]).long().to(logs.device)
        before = torch.from_numpy(reference.log_probabilities[part]).to(logs.device)
        divergences.append(_lumped(before, logs.gather(-1, ids)).cpu().numpy())
        agreed += int((logs.argmax(-1) == ids[:, 0]).sum())
        following.append(logs.gather(-1, wanted[:, None])[:, 0].cpu().numpy())
    values = np.concatenate([np.concatenate(divergences), np.concatenate(following)])
    if not np.isfinite(values).all():
        return Divergence(tokens=start, kl_at_least=None, top_token_agreement=None, perplexity=None)
    return Divergence(
        tokens=start,
        kl_at_least=float(np.concatenate(divergences).mean(dtype=np.float64)),
        top_token_agreement=agreed / start,
        perplexity=float(np.exp(-np.concatenate(following).mean(dtype=np.float64))),
    )


def _lumped(before: Tensor, after: Tensor) -> Tensor:
    """KL divergence `[positions]` of distributions of which some log-probabilities are known, and the rest is one."""
    tiny = torch.finfo(torch.float32).tiny
    p, q = before.double().exp(), after.double().exp()
    p_rest, q_rest = (1 - p.sum(-1)).clamp_min(0.0), (1 - q.sum(-1)).clamp_min(tiny)
    known = (p * (before - after)).sum(-1)
    return known + torch.where(p_rest > 0, p_rest * (p_rest.clamp_min(tiny) / q_rest).log(), 0.0)


def _log_probabilities(model: Any, texts: Sequence[Sequence[int]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Log-probabilities `[positions, vocabulary]` in float32 and the tokens that follow, a few positions at a time."""
    for text in texts:
        tokens = torch.tensor([list(text)], device=model.device)
        with torch.inference_mode():
            logits = model(tokens[:, :-1], use_cache=False).logits[0]
        following = tokens[0, 1:].to(logits.device)
        for some, wanted in zip(logits.split(_POSITIONS_AT_ONCE), following.split(_POSITIONS_AT_ONCE), strict=True):
            yield some.float().log_softmax(-1), wanted
