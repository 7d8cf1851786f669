"""Limits that no answer under load can beat: the hardware's, and the idle server's. Pure.

    floor = FloorTimes.of(records)      # of a closed loop with one user, whose prompts were all new
    floor.seconds(under_load)           # what each of these requests would have taken alone

`planning/speed.py` computes the limits of the hardware; the stage gets them in its config.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_pipeline.base.records import Frozen

if TYPE_CHECKING:  # the limits are read where no array is, and numpy loads slowly
    import numpy as np
    from numpy.typing import NDArray

    from llm_pipeline.loadtest.records import Records

TOLERANCE = 0.95
"""A time is impossible only below this share of the least one, because catalogue figures are rounded."""


class PhysicalLimits(Frozen):
    """Bounds that no engine can beat on the target's GPUs; not predictions.

    Attributes:
        accelerator: What they are, for the reader.
        first_token_seconds: Least time to the first token: the weights are read once.
        token_seconds: Least time from one token of a request to the next.
        prompt_token_seconds: Least time for each token of a prompt that no cache holds; 0 where prompts share text.
        tokens_per_second: Most output tokens a second of all requests together.
    """

    accelerator: str
    first_token_seconds: float
    token_seconds: float
    prompt_token_seconds: float
    tokens_per_second: float

    def least_seconds(self, records: Records) -> NDArray[np.float64]:
        """Least time from the send to the last token of each request, in seconds."""
        steps: NDArray[np.float64] = (records["output_tokens"] - 1).clip(min=0) * self.token_seconds
        return self.least_first_token_seconds(records) + steps

    def least_first_token_seconds(self, records: Records) -> NDArray[np.float64]:
        """Least time from the send to the first token of each request, in seconds."""
        prompts: NDArray[np.float64] = records["input_tokens"] * self.prompt_token_seconds
        return prompts.clip(min=self.first_token_seconds)


FEWEST = 10
"""Fewer answers do not show how fast a server is."""

_FAST = 0.1


@dataclass(frozen=True)
class FloorTimes:
    """Time of a request on an otherwise idle server, in seconds.

    A server that caches answers, or invents them, is faster under load than it was alone with fresh prompts. The time
    of an answer is fitted as a fixed part and one for each token of the prompt and of the answer, none of them negative
    (C. L. Lawson and R. J. Hanson, Solving Least Squares Problems, 1974), by relative errors, and then lowered to what
    the fastest tenth took. Lengths beyond those seen alone are not extrapolated.

    Attributes:
        answers: Answers behind it; fewer than `FEWEST` tell nothing.
        fixed_seconds: Whatever the lengths.
        prompt_token_seconds: For each token of the prompt.
        output_token_seconds: For each token of the answer.
        prompt_tokens: Shortest and longest prompt seen.
        output_tokens: Shortest and longest answer seen.
    """

    answers: int = 0
    fixed_seconds: float = 0.0
    prompt_token_seconds: float = 0.0
    output_token_seconds: float = 0.0
    prompt_tokens: tuple[int, int] = (0, 0)
    output_tokens: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, records: Records) -> FloorTimes:
        """The floor that a closed loop of one user shows."""
        alone = records.where(records.answered)
        times = seconds_from_send(alone)
        alone, times = alone.where(times > 0.0), times[times > 0.0]
        if len(alone) < FEWEST:
            return cls(answers=len(alone))
        import numpy as np
        from scipy import optimize

        prompts, outputs = alone["input_tokens"], alone["output_tokens"]
        terms = np.stack([np.ones(len(alone)), prompts, outputs], axis=1)
        parts, _ = optimize.nnls(terms / times[:, None], np.ones(len(alone)))
        fixed, prompt, output = parts * np.quantile(times / (terms @ parts), _FAST)
        return cls(
            answers=len(alone),
            fixed_seconds=float(fixed),
            prompt_token_seconds=float(prompt),
            output_token_seconds=float(output),
            prompt_tokens=(int(prompts.min()), int(prompts.max())),
            output_tokens=(int(outputs.min()), int(outputs.max())),
        )

    @property
    def known(self) -> bool:
        """Whether there are enough answers to compare others with."""
        return self.answers >= FEWEST

    def seconds(self, records: Records) -> NDArray[np.float64]:
        """The time of each request if it were alone, from send to end; a lower bound for lengths that were not seen."""
        import numpy as np

        prompts, outputs = records["input_tokens"], records["output_tokens"]
        longest = (
            self.fixed_seconds
            + self.prompt_token_seconds * np.minimum(prompts, self.prompt_tokens[1])
            + self.output_token_seconds * np.minimum(outputs, self.output_tokens[1])
        )
        seconds: NDArray[np.float64] = (
            longest * _share(prompts, self.prompt_tokens[0]) * _share(outputs, self.output_tokens[0])
        )
        return seconds


def seconds_from_send(records: Records) -> NDArray[np.float64]:
    """From the send, not the scheduled arrival, to the last byte."""
    seconds: NDArray[np.float64] = records["total_seconds"] - records["lag_seconds"]
    return seconds


def _share(tokens: NDArray[np.int32], shortest: int) -> NDArray[np.float64]:
    import numpy as np

    return np.minimum(1.0, tokens / max(1, shortest)) if shortest else np.ones(len(tokens))
