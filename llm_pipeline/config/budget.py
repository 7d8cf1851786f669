"""What a release may take before a person is asked."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from llm_pipeline.base.quantities import duration
from llm_pipeline.config.model import ConfigModel, PositiveHours

HOUR = 3600

Amount = Annotated[float, Field(ge=0.0, le=1_000_000_000.0)]


class Budget(ConfigModel):
    """What a release may take before a person is asked, after its plan and before anything large is fetched.

    Attributes:
        hours: Planned time of all that will be computed, one step after the other; None for no limit.
        cost: Planned price of its GPU-hours, in the deployment's currency; None for no limit. The deployment must name
            the price of every GPU that is needed.
    """

    hours: PositiveHours | None = None
    cost: Amount | None = None

    def __bool__(self) -> bool:
        return self.hours is not None or self.cost is not None

    def in_words(self, currency: str) -> str:
        """What it allows: `2 h, 12.60 EUR`."""
        hours = [] if self.hours is None else [duration(self.hours * HOUR)]
        return ", ".join([*hours, *([] if self.cost is None else [f"{self.cost:.2f} {currency}"])])
