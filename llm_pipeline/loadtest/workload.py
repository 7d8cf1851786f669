"""The traffic of a workload: requests, lengths and arrivals drawn from its files, the same for the same seed.

    source = TrafficSource(workload, Path("configs"), count_tokens=open_counter(repository))
    traffic = source.open_loop(rate_per_second=20.0, duration_seconds=60.0, seed=7)

A prefix cache makes a server look faster for prompts that it has seen. So a prompt occurs once in a window, composed
prompts are new in each window, and they share prefixes only if `shared_prefixes` says so. Prompts taken as they are (no
`prompt_tokens`) may occur again in another window.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.workload import Lengths, RecordedLengths, Workload, longest
from llm_pipeline.loadtest.prompts import Composer, CountTokens, RecordedPrompt, read_prompts
from llm_pipeline.loadtest.traffic import LoadRequest, Traffic

Integers = NDArray[np.int64]

_MOST_TOO_LONG = 1.05
_NORMAL_P95 = 1.6448536269514722
_LEAD_IN_SCALES = 10.0


def check_workload(workload: Workload, directory: Path) -> tuple[RecordedPrompt, ...]:
    """Read the prompts of a load test, before anything is spent.

    Args:
        workload: The traffic.
        directory: `configs/`, or the published data set.

    Raises:
        ConfigError: The file is missing, or has a line that is not of its format.
    """
    recorded = isinstance(workload.output_tokens, RecordedLengths)
    return read_prompts(locate_prompts(workload, directory), with_output_tokens=recorded)


def locate_prompts(workload: Workload, directory: Path) -> Path:
    """Where the file of prompts is: below `configs/`, or in the data set that resolving a release publishes.

    Raises:
        ConfigError: It is missing.
    """
    places = (directory / workload.prompts, directory / PurePosixPath(workload.prompts).name)
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise ConfigError(f"there is no {workload.prompts}", where=str(directory))
    return found


def longest_request(workload: Workload) -> int | None:
    """Tokens of the longest request with its answer; None for prompts that are taken as they are.

    A composed prompt may be some tokens longer or shorter than asked for.
    """
    if workload.prompt_tokens is None:
        return None
    shared = workload.shared_prefixes.tokens if workload.shared_prefixes else 0
    prompt = math.ceil((shared + longest(workload.prompt_tokens)) * _MOST_TOO_LONG)
    return prompt + longest(workload.output_tokens)


class TrafficSource:
    """Traffic of one workload. Equal seeds give equal traffic; other seeds other prompts, lengths and arrivals.

    Args:
        workload: What to draw.
        directory: `configs/`, or the published data set, with the workload's files.
        count_tokens: Tokens of a text.

    Raises:
        ConfigError: As `check_workload`.
    """

    def __init__(self, workload: Workload, directory: Path, *, count_tokens: CountTokens) -> None:
        self._workload = workload
        self._count_tokens = count_tokens
        self._prompts = check_workload(workload, directory)

    def open_loop(self, rate_per_second: float, duration_seconds: float, seed: int) -> Traffic:
        """A window of requests that arrive at a mean rate.

        Raises:
            ConfigError: There is no request in it, or the file has too few words for so many different prompts.
        """
        traffic = self.windows(rate_per_second, duration_seconds, [seed])
        if not traffic.requests:
            raise ConfigError("this rate and duration give no request", hint="raise duration_seconds")
        return traffic

    def windows(self, rate_per_second: float, window_seconds: float, seeds: Sequence[int]) -> Traffic:
        """Windows one after another without a pause, each with a seed of its own; one may have no request.

        Raises:
            ConfigError: The file has too few words for so many different prompts.
        """
        drawn = [arrival_times(rate_per_second, window_seconds, self._workload.burstiness, seed) for seed in seeds]
        requests = [self._requests(len(arrivals), seed) for arrivals, seed in zip(drawn, seeds, strict=True)]
        arrivals = np.concatenate([place * window_seconds + arrivals for place, arrivals in enumerate(drawn)])
        return Traffic(tuple(chain(*requests)), len(seeds) * window_seconds, arrivals)

    def closed_loop(self, concurrency: int, duration_seconds: float, seed: int, *, maximum_requests: int) -> Traffic:
        """A window of users who send one request after another, at most so many in all.

        Raises:
            ConfigError: The file has too few words for so many different prompts.
        """
        return Traffic(self._requests(maximum_requests, seed), duration_seconds, concurrency=concurrency)

    def _requests(self, count: int, seed: int) -> tuple[LoadRequest, ...]:
        """Each prompt of the file once, in a random order; then any of them, for its lengths only."""
        random, known = draws(seed, "rows"), len(self._prompts)
        rows = np.concatenate([random.permutation(known)[:count], random.integers(0, known, max(0, count - known))])
        recorded = np.array([prompt.output_tokens for prompt in self._prompts])[rows]
        answers = draw_lengths(self._workload.output_tokens, recorded, draws(seed, "output tokens"))
        able = draws(seed, "cancelled").permutation(np.flatnonzero(answers > 1))
        leaves_after = np.zeros(count, dtype=np.int64)
        leaving = able[: round(self._workload.cancelled_share * count)]
        leaves_after[leaving] = answers[leaving] // 2
        texts = self._with_prefixes(self._texts(rows, seed), seed)
        columns = zip(texts, answers.tolist(), leaves_after.tolist(), strict=True)
        return tuple(LoadRequest(text, tokens, cancel_after_tokens=after) for text, tokens, after in columns)

    def _texts(self, rows: Integers, seed: int) -> list[str]:
        asked = self._workload.prompt_tokens
        if asked is None:
            texts = [self._prompts[row].text for row in rows[: len(self._prompts)].tolist()]
            more = rows[len(texts) :]
            if not len(more):
                return texts
            return texts + self._composer.compose_fresh(self._file_tokens[more], draws(seed, "texts"), set(texts))
        own = self._file_tokens[rows] if isinstance(asked, RecordedLengths) else rows
        tokens = draw_lengths(asked, own, draws(seed, "prompt tokens"))
        return self._composer.compose_fresh(tokens, draws(seed, "texts"), set())

    def _with_prefixes(self, texts: list[str], seed: int) -> list[str]:
        shared = self._workload.shared_prefixes
        if shared is None:
            return texts
        tokens = np.full(shared.prefixes, shared.tokens, dtype=np.int64)
        # the same in all windows, like the system prompt that a server in use has in its cache
        prefixes = self._composer.compose_fresh(tokens, draws(self._workload.seed, "shared prefixes"), set())
        random = draws(seed, "prefixes")
        for place in random.permutation(len(texts))[: round(shared.share * len(texts))].tolist():
            texts[place] = f"{prefixes[random.integers(shared.prefixes)]}\n\n{texts[place]}"
        return texts

    @cached_property
    def _composer(self) -> Composer:
        return Composer([prompt.text for prompt in self._prompts], self._count_tokens)

    @cached_property
    def _file_tokens(self) -> Integers:
        none = self._count_tokens("")
        counted = [max(1, self._count_tokens(prompt.text) - none) for prompt in self._prompts]
        return np.array(counted, dtype=np.int64)


def draws(seed: int, purpose: str) -> np.random.Generator:
    """Random numbers; the same seed gives the same ones, and another purpose others."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(f"{purpose} {seed}".encode()).digest()[:16], "big"))


def arrival_times(rate_per_second: float, duration_seconds: float, burstiness: float, seed: int) -> NDArray[np.float64]:
    """Times in seconds from the start of a window, rising, all before its end; shape [requests].

    Gaps are gamma numbers with `burstiness` as their coefficient of variation. The process runs before the window
    begins: one that starts with it starts with a burst.

    Raises:
        ValueError: The rate or the duration is not positive.
    """
    if rate_per_second <= 0 or duration_seconds <= 0:
        raise ValueError(f"{rate_per_second=} and {duration_seconds=} must be positive")
    random, scale = draws(seed, "arrivals"), burstiness**2
    lead_in = _LEAD_IN_SCALES * max(1.0, scale)
    end = rate_per_second * duration_seconds + lead_in
    times = np.zeros(1)
    while times[-1] < end:
        missing = end - times[-1]
        gaps = random.gamma(1.0 / scale, scale, int(missing + 4.0 * missing**0.5 + 16.0))
        times = np.concatenate([times, times[-1] + np.cumsum(gaps)])
    within: NDArray[np.float64] = times[(times > lead_in) & (times < end)] - lead_in
    return within / rate_per_second


def draw_lengths(lengths: Lengths, recorded: Integers, random: np.random.Generator) -> Integers:
    """Lengths in tokens, 1 or more; as many as there are recorded ones, which they are if the workload says so."""
    if isinstance(lengths, RecordedLengths):
        return np.clip(recorded, 1, lengths.maximum)
    if isinstance(lengths, tuple):
        return random.integers(lengths[0], lengths[1] + 1, len(recorded))
    spread = math.log(lengths.p95 / lengths.median) / _NORMAL_P95
    drawn = np.rint(random.lognormal(math.log(lengths.median), spread, len(recorded))).astype(np.int64)
    return np.clip(drawn, lengths.minimum, lengths.maximum)
