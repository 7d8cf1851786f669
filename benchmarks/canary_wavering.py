"""False rollbacks where servers waver by themselves, and what it costs to hold them: ours, Flagger's and Kayenta's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from canary_blocks import Blocks
from canary_noise import BLOCK_SECONDS, Noise, Server, draw_servers
from canary_ours import Analysis
from canary_peers import flagger, kayenta
from canary_traffic import ERROR_SHARE, LOOK_SECONDS, SAME, Arm, Counts, Numbers, Truth
from goals import at_least, at_most

from llm_pipeline.config.policy import CanaryPolicy

NOISES = (
    Noise("independent"),
    *(Noise(f"AR(1) of {seconds:g} s, sd 0.2", seconds=seconds, spread=0.2) for seconds in (10, 30, 120, 300, 600)),
    Noise("own stalls of 10 s every 10 min", stall_every=600.0),
    Noise("stalls and AR(1) of 120 s", seconds=120.0, spread=0.2, stall_every=600.0),
    Noise("heavy tails", heavy=0.1),
    Noise("daily drift that both share", drift=0.3),
    Noise("cold caches: x3 for 30 s, cold_seconds 30", cold=3.0),
)
SLOWER = Truth("1.3x median", median_milliseconds=260.0)
_HOUR = round(3600 / BLOCK_SECONDS)
_PER_LOOK = round(LOOK_SECONDS / BLOCK_SECONDS)
_EDGES = np.exp(np.linspace(math.log(50.0), math.log(30_000.0), 40))
_LONG = (Noise("AR(1) of 300 s, sd 0.2", seconds=300.0, spread=0.2), Noise("own stalls", stall_every=600.0))
_CHECKED_RUNS = 2
_MINUTES = 20.0


@dataclass(frozen=True)
class Site:
    """A rate, a share, and how long stable was seen before and the canary lasts."""

    rate: float
    share: float
    hours_before: float = 1.0
    hours: float = 1.0

    def shape(self, runs: int) -> tuple[int, int, int]:
        """Runs, and blocks before and during the canary."""
        return runs, round(self.hours_before * _HOUR), round(self.hours * _HOUR)


SITES = (Site(5.0, 0.25), Site(20.0, 0.05), Site(20.0, 0.25), Site(20.0, 0.25, hours_before=1 / 6))


def wavering(policy: CanaryPolicy, runs: int, random: np.random.Generator) -> Iterator[bool]:
    """Print the cells and the goals."""
    ours = Blocks(Analysis(policy.model_copy(update={"block_seconds": BLOCK_SECONDS})))
    differences = 0
    print(f"{'requests/s x share, history, noise':66} {'ours':>6} {'no blocks':>9} {'Flagger':>8} {'Kayenta':>8}")
    for site in SITES:
        for noise in NOISES:
            name = f"{site.rate:g} x {100 * site.share:g} %, {60 * site.hours_before:.0f} min, {noise.name}"
            false, missed = _cell(ours, site, noise, name=name, runs=runs, random=random)
            differences += missed
            yield at_most(f"false rollbacks at {name}", false, policy.alpha)
    for noise in _LONG:
        servers, _ = _drawn(ours, Site(5.0, 0.25, hours=24.0), noise, SAME, runs=runs // 2, random=random)
        false = float((ours.roll_backs(*servers) > 0).mean())
        yield at_most(f"false rollbacks at 5 x 25 % over 24 h, {noise.name}", false, policy.alpha)
    yield at_most("runs that the package's analysis decides otherwise, with blocks", differences, 0)
    yield from _power(ours, runs, random)


def _cell(
    ours: Blocks, site: Site, noise: Noise, *, name: str, runs: int, random: np.random.Generator
) -> tuple[float, int]:
    servers, peers = _drawn(ours, site, noise, SAME, runs=runs, random=random)
    looks = (
        ours.roll_backs(*servers),
        Blocks(ours.analysis, allowance=False).roll_backs(*servers),
        flagger(peers[0]),
        kayenta(*peers),
    )
    shares = [float((found > 0).mean()) for found in looks]
    print(f"{name:66} {shares[0]:6.3f} {shares[1]:9.3f} {shares[2]:8.3f} {shares[3]:8.3f}", flush=True)
    few = [_first(server, _CHECKED_RUNS) for server in servers]
    exact = Blocks(ours.analysis, learned_every=1).roll_backs(*few)
    return shares[0], sum(ours.cross_check(*few, run) != exact[run] for run in range(_CHECKED_RUNS))


def _power(ours: Blocks, runs: int, random: np.random.Generator) -> Iterator[bool]:
    """What the allowance costs where nothing wavers."""
    for site in (Site(20.0, 0.05), Site(20.0, 0.25), Site(5.0, 0.25), Site(2.0, 0.25), Site(20.0, 0.05, 1 / 6)):
        servers, _ = _drawn(ours, site, NOISES[0], SLOWER, runs=runs, random=random)
        blocks, before = (analysis.roll_backs(*servers) for analysis in (ours, Blocks(ours.analysis, allowance=False)))
        name = f"{site.rate:g} x {100 * site.share:g} % after {60 * site.hours_before:.0f} min"
        minutes, earlier = _minutes(blocks), _minutes(before)
        if site.rate >= 20.0:
            yield at_most(f"1.3x median caught at {name}, median of all runs", minutes, _MINUTES, "min")
        yield at_most(f"1.3x median caught at {name}, by the time it takes without blocks", minutes / earlier, 2.0)
        yield at_least(f"1.3x median caught at {name} within an hour", float((blocks > 0).mean()), 0.9)


def _minutes(found: Counts) -> float:
    return float(np.median(np.where(found > 0, found, np.inf))) * BLOCK_SECONDS / 60.0


def _drawn(
    ours: Blocks, site: Site, noise: Noise, truth: Truth, *, runs: int, random: np.random.Generator
) -> tuple[tuple[Server, Server, Server], tuple[Arm, Arm]]:
    """Servers with the limits of our analysis, and the arms by minutes that the peers see."""
    limits = ours.analysis.limits
    edges = np.union1d(limits, _EDGES)
    drawn = draw_servers(
        noise, truth, rate=site.rate, share=site.share, limits=edges, shape=site.shape(runs), random=random
    )
    before, candidate, stable = (
        Server(server.requests, server.slow[..., np.searchsorted(edges, limits)]) for server in drawn
    )
    cold = math.ceil(noise.cold_seconds / BLOCK_SECONDS) if noise.cold > 1.0 else 0
    judged = (Server(server.requests[:, cold:], server.slow[:, cold:]) for server in (candidate, stable))
    arms = tuple(_by_minutes(server, edges, random) for server in drawn[1:])
    return (before, *judged), arms  # type: ignore[return-value]


def _by_minutes(server: Server, edges: Numbers, random: np.random.Generator) -> Arm:
    runs, blocks = server.requests.shape
    minutes = blocks // _PER_LOOK
    requests = server.requests[:, : minutes * _PER_LOOK].reshape(runs, minutes, _PER_LOOK).sum(axis=2)
    slow = server.slow[:, : minutes * _PER_LOOK].reshape(runs, minutes, _PER_LOOK, len(edges)).sum(axis=2)
    shares = slow / np.maximum(requests, 1)[..., None]
    at = (shares > 0.01).sum(axis=2).clip(max=len(edges) - 1)
    p99 = np.where(requests > 0, edges[at], np.nan)
    errors = random.binomial(requests, ERROR_SHARE)
    one = tuple(part[None] for part in (requests, errors, requests - errors))
    return Arm(*one, slow[None], p99)


def _first(server: Server, runs: int) -> Server:
    return Server(server.requests[:runs], server.slow[:runs])
