"""One row of numbers a request: how a client process keeps its records and hands them back."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.loadtest.client.answer import Answer
from llm_pipeline.loadtest.records import COLUMNS, Fault


class Rows:
    """The records of one client process, as they come.

    Attributes:
        details: What the first failure of each kind said.
    """

    def __init__(self) -> None:
        self.details: dict[Fault, str] = {}
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._values) // len(COLUMNS)

    def add(self, answer: Answer) -> None:
        """Add an answer that has ended."""
        scheduled = answer.scheduled_at
        self._values.extend((
            answer.number,
            answer.arrives_at,
            answer.sent_at - scheduled,
            answer.first_text_at - scheduled,
            answer.last_text_at - scheduled,
            answer.ended_at - scheduled,
            answer.longest_gap,
            answer.input_tokens,
            answer.output_tokens,
            answer.request.maximum_tokens,
            answer.status,
            answer.fault,
        ))  # fmt: skip
        if answer.detail:
            self.details.setdefault(answer.fault, answer.detail)

    def values(self) -> NDArray[np.float64]:
        """The columns of `Records` in their order, shape [requests, columns]."""
        return np.frombuffer(self._values, np.float64).reshape(-1, len(COLUMNS))
