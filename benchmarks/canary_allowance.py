"""What a request's evidence counts beside stable's own wavering, for many simulated canaries; formulas of `spread`."""

from __future__ import annotations

import numpy as np
from canary_traffic import Counts, Numbers

from llm_pipeline.statistics.spread import FEWEST_SEGMENTS, SCALES, Scale


def independence(
    information: Numbers,
    requests: tuple[Counts, Counts],
    seen: tuple[Counts, Counts],
    *,
    cautious: bool = True,
    learned_every: int = 1,
) -> Numbers:
    """What the evidence counts at every block of every run.

    Args:
        information: That each block adds, runs by blocks.
        requests: Of the candidate and of stable, runs by blocks.
        seen: Stable's requests and events, runs by blocks, from before the canary to its end.
        cautious: As in `Scale.variance`.
        learned_every: After so many blocks the variance is taken anew.
    """
    mine, theirs = (arm.astype(np.float64) for arm in requests)
    weights, total = mine * theirs / np.maximum(mine + theirs, 1.0), information.cumsum(axis=1)
    lengths = weights.cumsum(axis=1) ** 2 / np.maximum((weights**2).cumsum(axis=1), 1e-12)
    counted, before = np.ones(lengths.shape), seen[0].shape[1] - lengths.shape[1]
    for number in range(0, lengths.shape[1], learned_every):
        part, end = slice(number, number + learned_every), before + number + 1
        variance = _variances(seen[0][:, :end], seen[1][:, :end], lengths[:, part], cautious=cautious)
        counted[:, part] = 1.0 / (1.0 + 2.0 * total[:, part] * variance)
    return counted


def information(events: tuple[Counts, Counts], requests: tuple[Counts, Counts]) -> Numbers:
    """Fisher's, of counts of the candidate and of stable about the logarithm of their ratio."""
    mine, theirs = (arm.astype(np.float64) for arm in requests)
    both, many = events[0] + events[1], np.maximum(mine + theirs, 2.0)
    found: Numbers = both * (mine + theirs - both) * mine * theirs / (many**2 * (many - 1.0))
    return found


def _variances(units: Counts, events: Counts, lengths: Numbers, *, cautious: bool) -> Numbers:
    """Of a server's log odds over so many blocks, for each run, learned from what was seen."""
    scales = [scale for scale in SCALES if units.shape[1] // scale >= FEWEST_SEGMENTS]
    if not scales:
        return np.zeros(lengths.shape)
    known = np.array(
        [
            [_scale(*run, scale).variance(0, cautious=cautious) for run in zip(units, events, strict=True)]
            for scale in scales
        ]
    )
    which = np.clip(np.searchsorted(scales, lengths, side="right") - 1, 0, None)
    return np.take_along_axis(known.T, which, axis=1)


def _scale(units: Counts, events: Counts, blocks: int) -> Scale:
    """One run's sums, as `Scale` has them after that many blocks."""
    segments = len(units) // blocks
    n, e = (counts[: segments * blocks].reshape(segments, blocks).sum(axis=1) for counts in (units, events))
    sums = {"units": int(n.sum()), "squares": int((n**2).sum()), "events": (int(e.sum()),)}
    sums |= {"crossed": (int((n * e).sum()),), "event_squares": (int((e**2).sum()),)}
    return Scale.start(blocks, 1).model_copy(update={"segments": segments, **sums})
