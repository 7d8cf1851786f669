"""The traffic of a workload: requests, lengths and arrivals drawn from its files, the same for the same seed.

    source = TrafficSource(workload, Path("configs"), count_tokens=open_counter(repository))
    traffic = source.open_loop(rate_per_second=20.0, duration_seconds=60.0, seed=7)

A prefix cache makes a server look faster for prompts that it has seen. So a prompt occurs once in a window, composed
prompts are new in each window, and they share prefixes only if `shared_prefixes` or a trace's `hash_ids` say so.
Prompts taken as they are (no `prompt_tokens`) may occur again in another window.
"""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path

import numpy as np

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.workload import PoissonArrivals, RecordedLengths, Workload
from llm_pipeline.loadtest.draws import Draws, Floats, Integers, arrival_times, assign, cut, draw_lengths, longest
from llm_pipeline.loadtest.prompts import Composer, CountTokens, RecordedPrompt, read_prompts
from llm_pipeline.loadtest.traces import BLOCK_TOKENS, RecordedTraffic, read_trace
from llm_pipeline.loadtest.traffic import LoadRequest, Traffic
from llm_pipeline.loadtest.workload_files import locate_files

_MOST_TOO_LONG = 1.05


def check_workload(workload: Workload, directory: Path) -> None:
    """Check what a load test will read, before anything is spent.

    Args:
        workload: The traffic.
        directory: `configs/`, or the published data set.

    Raises:
        ConfigError: Settings contradict one another, or a file has a line that is not of its format.
    """
    _read(workload, directory)


def longest_request(workload: Workload) -> int | None:
    """Tokens of the longest request with its answer; None for prompts that are taken as they are.

    A composed prompt may be some tokens longer or shorter than asked for.
    """
    if workload.prompt_tokens is None:
        return None
    shared = workload.shared_prefixes.tokens if workload.shared_prefixes else 0
    prompt = math.ceil((shared + workload.prompt_tokens.maximum) * _MOST_TOO_LONG)
    return prompt + longest(workload.output_tokens)


class TrafficSource:
    """Traffic of one workload.

    Equal seeds give equal traffic. Other seeds give other prompts, lengths and drawn arrivals; a trace that is replayed
    keeps its arrivals and lengths.

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
        self._prompts, self._trace = _read(workload, directory)

    def open_loop(self, rate_per_second: float, duration_seconds: float, seed: int) -> Traffic:
        """A window of requests that arrive at a mean rate.

        Raises:
            ConfigError: There is no request in it, or the file has too few words for so many different prompts.
        """
        arrivals = self._arrivals(rate_per_second, duration_seconds, seed)
        if not len(arrivals):
            raise ConfigError("this rate and duration give no request", hint="raise duration_seconds")
        return Traffic.open_loop(self._requests(len(arrivals), seed), arrivals, duration_seconds)

    def closed_loop(self, concurrency: int, duration_seconds: float, seed: int, *, maximum_requests: int) -> Traffic:
        """A window of users who send one request after another, at most so many in all.

        Raises:
            ConfigError: The file has too few words for so many different prompts.
        """
        return Traffic.closed_loop(self._requests(maximum_requests, seed), concurrency, duration_seconds)

    def _arrivals(self, rate_per_second: float, duration_seconds: float, seed: int) -> Floats:
        if self._trace is None or not _replays(self._workload):
            return arrival_times(self._workload.arrivals, rate_per_second, duration_seconds, seed)
        count = round(rate_per_second * duration_seconds)
        return self._trace.replay(count, duration_seconds) if count else np.empty(0)

    def _requests(self, count: int, seed: int) -> tuple[LoadRequest, ...]:
        workload = self._workload
        rows = self._rows(count, seed)
        answers = self._output_tokens(rows, seed)
        streamed = assign({1: workload.streaming_share}, count, Draws(seed, "streamed"))
        left = _half_way(answers, streamed, workload.cancelled_share, Draws(seed, "cancelled"))
        priorities = assign(workload.priorities, count, Draws(seed, "priorities"))
        texts = self._with_prefixes(self._texts(rows, seed), seed)
        columns = (answers.tolist(), streamed.tolist(), priorities.tolist(), left.tolist())
        return tuple(
            LoadRequest(text, tokens, stream=bool(stream), priority=priority, cancel_after_tokens=cancelled)
            for text, tokens, stream, priority, cancelled in zip(texts, *columns, strict=True)
        )

    def _file_rows(self, count: int, seed: int) -> Integers:
        """Each prompt of the file once, in a random order; then any of them, for its lengths only."""
        draws, known = Draws(seed, "rows"), len(self._prompts)
        return np.concatenate([draws.order(known)[:count], draws.integers(known, max(0, count - known))])

    def _rows(self, count: int, seed: int) -> Integers:
        """Which line of the trace, or else of the file of prompts, each request is like."""
        if self._trace is None:
            return self._file_rows(count, seed)
        if _replays(self._workload):
            return np.arange(count) % len(self._trace)
        return Draws(seed, "rows").integers(len(self._trace), count)

    def _output_tokens(self, rows: Integers, seed: int) -> Integers:
        asked = self._workload.output_tokens
        if not isinstance(asked, RecordedLengths):
            return draw_lengths(asked, len(rows), Draws(seed, "output tokens"))
        recorded = self._trace.output_tokens if self._trace else np.array([p.output_tokens for p in self._prompts])
        return np.maximum(1, cut(recorded[rows], asked))

    def _texts(self, rows: Integers, seed: int) -> list[str]:
        asked, trace, draws = self._workload.prompt_tokens, self._trace, Draws(seed, "texts")
        if asked is None:
            return self._texts_as_they_are(rows, seed)
        if not isinstance(asked, RecordedLengths):
            tokens = draw_lengths(asked, len(rows), Draws(seed, "prompt tokens"))
        elif trace is None:
            tokens = cut(self._file_tokens[rows], asked)
        else:
            tokens = cut(trace.prompt_tokens[rows], asked)
            if trace.blocks and _replays(self._workload):
                return self._composer.compose_blocks(_of_laps(trace, len(rows)), BLOCK_TOKENS, tokens, draws)
        return self._composer.compose_fresh(tokens, draws, set())

    def _texts_as_they_are(self, rows: Integers, seed: int) -> list[str]:
        texts = [self._prompts[row].text for row in rows[: len(self._prompts)].tolist()]
        more = rows[len(texts) :]
        if not len(more):
            return texts
        return texts + self._composer.compose_fresh(self._file_tokens[more], Draws(seed, "texts"), set(texts))

    def _with_prefixes(self, texts: list[str], seed: int) -> list[str]:
        shared = self._workload.shared_prefixes
        if shared is None:
            return texts
        tokens = np.full(shared.prefixes, shared.tokens, dtype=np.int64)
        # the same in all windows, like the system prompt that a server in use has in its cache
        prefixes = self._composer.compose_fresh(tokens, Draws(self._workload.seed, "shared prefixes"), set())
        draws = Draws(seed, "prefixes")
        begins = assign({1: shared.share}, len(texts), draws).tolist()
        which = draws.integers(shared.prefixes, len(texts)).tolist()
        return [
            f"{prefixes[number]}\n\n{text}" if begin else text
            for text, begin, number in zip(texts, begins, which, strict=True)
        ]

    @cached_property
    def _composer(self) -> Composer:
        return Composer([prompt.text for prompt in self._prompts], self._count_tokens)

    @cached_property
    def _file_tokens(self) -> Integers:
        none = self._count_tokens("")
        counted = [max(1, self._count_tokens(prompt.text) - none) for prompt in self._prompts]
        return np.array(counted, dtype=np.int64)


def _read(workload: Workload, directory: Path) -> tuple[tuple[RecordedPrompt, ...], RecordedTraffic | None]:
    _check_settings(workload)
    files = locate_files(workload, directory)
    recorded = workload.trace is None and isinstance(workload.output_tokens, RecordedLengths)
    prompts = read_prompts(files[0], with_output_tokens=recorded)
    trace = read_trace(files[1], workload.trace) if workload.trace else None
    if trace is not None and trace.blocks and workload.shared_prefixes and _replays(workload):
        raise ConfigError(
            "shared_prefixes: the trace's hash_ids say what prompts share",
            where="workload",
            hint="leave shared_prefixes out, or take only the trace's `lengths` (shape: lengths)",
        )
    return prompts, trace


def _replays(workload: Workload) -> bool:
    return workload.trace is not None and workload.trace.shape == "times"


def _check_settings(workload: Workload) -> None:
    recorded = isinstance(workload.prompt_tokens, RecordedLengths), isinstance(workload.output_tokens, RecordedLengths)
    if workload.trace and not all(recorded):
        raise ConfigError(
            "trace: it names the lengths, so prompt_tokens and output_tokens must be `recorded`",
            where="workload",
            hint="write {kind: recorded, maximum: ...} with the longest that the server takes",
        )
    if _replays(workload) and workload.arrivals != PoissonArrivals():
        raise ConfigError(
            "arrivals: the trace's times are replayed",
            where="workload",
            hint="leave arrivals out, or take only the trace's `lengths` (shape: lengths)",
        )
    if workload.cancelled_share > workload.streaming_share:
        raise ConfigError("cancelled_share: only streamed requests can be cancelled", where="workload")
    if round(workload.rate_per_second * workload.duration_seconds) < 1:
        raise ConfigError(
            "rate_per_second times duration_seconds is less than one request",
            where="workload",
            hint="raise duration_seconds",
        )


def _of_laps(trace: RecordedTraffic, count: int) -> list[tuple[int, ...]]:
    """Ids of the blocks of each request of a replay; a trace that starts over has others, so that nothing repeats."""
    laps = 1 + max(max(ids, default=0) for ids in trace.blocks)
    return [
        tuple(number // len(trace) * laps + identity for identity in trace.blocks[number % len(trace)])
        for number in range(count)
    ]


def _half_way(answers: Integers, streamed: Integers, share: float, draws: Draws) -> Integers:
    """After how many tokens a user leaves; 0 for never."""
    able = np.flatnonzero((streamed == 1) & (answers > 1))
    leaving = able[draws.order(len(able))[: round(share * len(answers))]]
    after = np.zeros(len(answers), dtype=np.int64)
    after[leaving] = answers[leaving] // 2
    return after
