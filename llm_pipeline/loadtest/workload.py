"""What a load test sends: requests drawn from a file of prompts, with their times, the same for the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_pipeline.config.workload import Workload
from llm_pipeline.digest import sha256_json
from llm_pipeline.errors import ConfigError
from llm_pipeline.loadtest.arrivals import poisson_arrivals
from llm_pipeline.serving.client import GenerationRequest


@dataclass(frozen=True)
class ScheduledRequest:
    """A request and when it arrives, in seconds from the start of the window."""

    number: int
    arrives_at: float
    request: GenerationRequest


@dataclass(frozen=True)
class Schedule:
    """Everything a load test sends.

    Attributes:
        warmup: Sent one after another before the window; not judged.
        requests: The measured window, in order of arrival.
        duration_seconds: Length of the window.
        digest: Names the window's traffic: equal only for the same prompts, lengths and times.
    """

    warmup: tuple[GenerationRequest, ...]
    requests: tuple[ScheduledRequest, ...]
    duration_seconds: float
    digest: str

    @property
    def offered_rate(self) -> float:
        """Requests a second that the schedule asks for."""
        return len(self.requests) / self.duration_seconds


def read_prompts(directory: Path) -> list[str]:
    """The prompts of a dataset: a directory with one jsonl file whose lines have a `prompt`.

    Raises:
        ConfigError: There is not exactly one file, or a line has no prompt.
    """
    files = sorted(directory.glob("*.jsonl"))
    if len(files) != 1:
        raise ConfigError(f"{len(files)} jsonl files instead of one", where=str(directory))
    prompts: list[str] = []
    with files[0].open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                prompt = json.loads(line)["prompt"]
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError("a line needs a `prompt` field", where=f"{files[0]}:{number}") from error
            if not isinstance(prompt, str) or not prompt.strip():
                raise ConfigError("the prompt is empty", where=f"{files[0]}:{number}")
            prompts.append(prompt)
    if not prompts:
        raise ConfigError("the file holds no prompts", where=str(files[0]))
    return prompts


def make_schedule(workload: Workload, prompts: Sequence[str]) -> Schedule:
    """Draw a workload's requests.

    Prompts come in a shuffled order and repeat only after all were used, so that a prefix cache helps no more than
    the file itself makes it. `ignore_eos` is set: the lengths are the drawn ones, and a short answer is an error.

    Raises:
        ConfigError: The rate and the duration give no request, or the smallest length is above the largest.
    """
    least, most = workload.output_tokens
    if not 1 <= least <= most:
        raise ConfigError(f"output_tokens {least} to {most} is no range")
    arrivals = poisson_arrivals(workload.rate_per_second, workload.duration_seconds, workload.seed)
    if not arrivals:
        raise ConfigError("this rate and duration give no request at all", hint="raise duration_seconds")
    draws = random.Random(f"workload {workload.seed}")  # noqa: S311 - a draw, not a secret
    order = list(prompts)
    draws.shuffle(order)
    drawn = [
        GenerationRequest(order[number % len(order)], draws.randint(least, most), ignore_eos=True)
        for number in range(len(arrivals) + workload.warmup_requests)
    ]
    requests = tuple(
        ScheduledRequest(number, arrives_at, request)
        for number, (arrives_at, request) in enumerate(zip(arrivals, drawn, strict=False))
    )
    return Schedule(
        warmup=tuple(drawn[len(arrivals) :]),
        requests=requests,
        duration_seconds=workload.duration_seconds,
        digest=sha256_json([[r.arrives_at, r.request.prompt, r.request.maximum_tokens] for r in requests]),
    )
