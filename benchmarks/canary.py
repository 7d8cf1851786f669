"""Does the canary's analysis blame the right ones, and how soon? Beside Flagger's rule and Kayenta's judge, simulated.

    make bench-canary
    python benchmarks/canary.py --runs 2000  # tighter

A step is held for an hour and looked at each minute. A cell is the share of runs that are rolled back, and the median
minute of those; with no change every rollback is a false one. Then the same when users stick to an arm, and where
servers waver by themselves: correlated in time, stalling, cold.

One line a goal; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

import numpy as np
from canary_ours import Analysis
from canary_peers import flagger, kayenta
from canary_sessions import Sessions, false_roll_backs
from canary_traffic import LOOK_SECONDS, LOOKS, SAME, TRUTHS, Counts, Truth, draw_arm
from canary_wavering import wavering
from goals import at_least, at_most

from llm_pipeline.config.policy import CanaryPolicy

RATES, SHARES = (2.0, 20.0, 200.0), (0.01, 0.05, 0.25)
_HOLD_SECONDS = LOOKS * LOOK_SECONDS
POLICY = CanaryPolicy(
    minimum_bake_seconds=_HOLD_SECONDS, maximum_bake_seconds=_HOLD_SECONDS, block_seconds=LOOK_SECONDS
)
_CHECKED_RUNS = 3
_CAUGHT, _MINUTES = 0.9, 12.0
_NEVER = float("inf")


def main() -> int:
    """Simulate, print the table and the goals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=400, help="simulated canaries of each cell, 300 or more")
    parser.add_argument("--wavering-runs", type=int, default=200, help="the same where servers waver")
    parser.add_argument("--seed", type=int, default=20_261_121)
    options = parser.parse_args()
    random, started = np.random.default_rng(options.seed), time.monotonic()
    print(f"{'requests/s x share, truth':34} {'ours':>14} {'Flagger':>14} {'Kayenta':>14}")
    met = [
        *_cells(options.runs, random),
        *_sticky(options.runs, random),
        *wavering(POLICY, options.wavering_runs, random),
    ]
    print(f"{options.runs:,} canaries a cell, seed {options.seed}, {time.monotonic() - started:.0f} s")
    return 0 if all(met) else 1


def _cells(runs: int, random: np.random.Generator) -> Iterator[bool]:
    found: dict[tuple[float, float, Truth], Counts] = {}
    analysis, differences = Analysis(POLICY), 0
    for rate in RATES:
        for share in SHARES:
            stable = draw_arm(SAME, rate * (1.0 - share), analysis.limits, runs, random)
            for truth in TRUTHS:
                candidate = draw_arm(truth, rate * share, analysis.limits, runs, random)
                ours = found[rate, share, truth] = analysis.roll_backs(candidate, stable)
                differences += analysis.cross_check(candidate, stable, share, ours, _CHECKED_RUNS)
                peers = flagger(candidate), kayenta(candidate, stable)
                cells = "".join(f" {_cell(looks):>14}" for looks in (ours, *peers))
                print(f"{f'{rate:g} x {100 * share:g} %, {truth.name}':34}{cells}", flush=True)
    shares = {key: float((looks > 0).mean()) for key, looks in found.items()}
    for (rate, share, truth), caught in shares.items():
        if truth is SAME:
            yield at_most(f"false rollbacks at {rate:g} x {100 * share:g} %", caught, POLICY.alpha)
    errors, median = TRUTHS[3], TRUTHS[4]
    yield at_least("50x errors caught at 2 x 1 %", shares[2.0, 0.01, errors], _CAUGHT)
    minutes = _median(found[20.0, 0.05, median])
    yield at_most("1.3x median caught at 20 x 5 %, median of all runs", minutes, _MINUTES, "min")
    yield at_most("runs that the package's analysis decides otherwise, look by look", differences, 0)


def _sticky(runs: int, random: np.random.Generator) -> Iterator[bool]:
    """Sessions of ten requests; the rates of rollbacks that are all false."""
    for likeness in (0.01, 0.1, 0.3):
        for ratio in (1.0, 1.5):
            requests, sessions = false_roll_backs(Sessions(10, likeness), ratio, POLICY.alpha, runs, random)
            name = f"sticky sessions, ICC {likeness:g}, tolerated ratio {ratio:g}"
            print(f"{name}: false rollbacks by request {requests:.3f}, by session {sessions:.3f}", flush=True)
            yield at_most(f"false rollbacks by session, ICC {likeness:g}, ratio {ratio:g}", sessions, POLICY.alpha)
            if likeness == 0.3:
                shown = f"false rollbacks by request, ICC {likeness:g}, ratio {ratio:g} (why sessions are counted)"
                yield at_least(shown, requests, 2 * POLICY.alpha)


def _cell(looks: Counts) -> str:
    caught = looks[looks > 0]
    return f"{len(caught) / len(looks):.3f}" + (f" ({np.median(caught):3.0f})" if len(caught) else "      ")


def _median(looks: Counts) -> float:
    """Of all runs, in minutes: those never rolled back count as infinite."""
    return float(np.median(np.where(looks > 0, looks, _NEVER))) * LOOK_SECONDS / 60.0


if __name__ == "__main__":
    sys.exit(main())
