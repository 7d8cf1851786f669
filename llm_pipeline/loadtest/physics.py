"""The few numbers of a target's roofline that a load test is held against. Pure, and it imports no planning.

`planning/physical_limits.py` computes them; a stage gets them in its config.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.base.records import Frozen
from llm_pipeline.loadtest.records import Records

TOLERANCE = 0.95
"""Catalog figures are rounded: a time is impossible below this share of the least one."""


class PhysicalLimits(Frozen):
    """What no engine can beat on the target's GPUs: bounds, not predictions.

    Attributes:
        accelerator: What they are, for the reader.
        first_token_seconds: Least time to the first token: the weights are read once.
        token_seconds: Least time from one token of a request to the next.
        prompt_token_seconds: Least time for each token of a prompt that no cache holds; 0 where prompts share text.
        tokens_per_second: Most output tokens a second of all requests together.
        instances: Instances of the engine, each with GPUs of its own.
    """

    accelerator: str
    first_token_seconds: float
    token_seconds: float
    prompt_token_seconds: float
    tokens_per_second: float
    instances: int = 1

    def least_seconds(self, records: Records) -> NDArray[np.float64]:
        """Least time from the send to the last token of each request, in seconds."""
        steps: NDArray[np.float64] = np.maximum(0, records["output_tokens"] - 1) * self.token_seconds
        return self.least_first_token_seconds(records) + steps

    def least_first_token_seconds(self, records: Records) -> NDArray[np.float64]:
        """Least time from the send to the first token of each request, in seconds."""
        prompts: NDArray[np.float64] = records["input_tokens"] * self.prompt_token_seconds
        return np.maximum(self.first_token_seconds, prompts)
