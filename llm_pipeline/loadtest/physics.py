"""The hardware's limits, that no answer under load can beat. Pure.

`planning/speed.py` computes them; the stage gets them in its config.
"""

from __future__ import annotations

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


def seconds_from_send(records: Records) -> NDArray[np.float64]:
    """From the send, not the scheduled arrival, to the last byte."""
    seconds: NDArray[np.float64] = records["total_seconds"] - records["lag_seconds"]
    return seconds
