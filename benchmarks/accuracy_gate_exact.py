"""Chance of a false pass at the margin, exactly: all counts that can occur, look by look, and no simulation."""

from __future__ import annotations

from typing import Literal

import numpy as np
from accuracy_gate_ours import Gate, Truth
from scipy import signal, stats

_NEGLIGIBLE = 1e-9


def exact_chance(gate: Gate, truth: Truth, verdict: Literal["go", "no_go"]) -> float:
    """Chance that some look says so, if one went on whenever a look says anything else."""
    size = gate.plan.items
    most = [int(stats.binom.ppf(1 - _NEGLIGIBLE, size, share)) + 2 for share in truth.shares[:2]]
    lost, gained = np.indices(most)
    left, passed, before = np.zeros(most), 0.0, 0
    left[0, 0] = 1.0
    for look, asked in enumerate(gate.plan.sizes, start=1):
        more = asked - before
        step = stats.multinomial.pmf(np.stack([lost, gained, more - lost - gained], axis=-1), more, truth.shares)
        left = signal.fftconvolve(left, np.nan_to_num(step))[: most[0], : most[1]].clip(0.0)
        possible = lost + gained <= asked
        said = np.zeros(most, dtype=bool)
        said[possible] = getattr(gate.decide(look, lost[possible], gained[possible]), verdict)
        passed += float(left[said].sum())
        left[said] = 0.0
        before = asked
    return passed
