"""The settings of the metric source `prometheus`, what opens it, and its probe."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from llm_pipeline.base.adapters import Adapter, OnCall
from llm_pipeline.config.model import PlainUrl, PositiveSeconds, VariableName, Word
from llm_pipeline.config.router_place import BothSlots, MetricSourceModel

Selector = Annotated[str, Field(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*(\{[^{}]*\})?$", max_length=2048)]
"""Series of one counter in PromQL's words: its name, and labels in braces."""


class SlotLabels(BothSlots):
    """The value of a label for each slot."""

    what: ClassVar[str] = "labels"
    blue: Word
    green: Word


class PrometheusSource(MetricSourceModel):
    """Counters in Prometheus, or in what answers its query API.

    Attributes:
        url: Its base URL.
        token_variable: Environment variable with a bearer token; None where it asks for none.
        slot_label: The label that tells the slots apart.
        slots: Its value for each slot. Series with any other value are an error: narrow the selectors.
        requests: Counter of the requests without refused ones, e.g. `http_requests_total{code!~"4.."}`.
        errors: Counter of those of them that a server failed, e.g. `http_requests_total{code=~"5.."}`.
        first_token: Histogram of the time to the first token of streamed answers, its `_bucket` series.
        end_to_end: The same of the time to the last byte. Latencies are compared at edges that most answers lie below.
        bucket_unit: What `le` is in.
        scrape_seconds: How often the series are scraped; a newest sample older than four times as long means that
            the source is down.
    """

    kind: Literal["prometheus"]
    url: PlainUrl
    token_variable: VariableName | None = None
    slot_label: Word
    slots: SlotLabels
    requests: Selector
    errors: Selector
    first_token: Selector | None = None
    end_to_end: Selector | None = None
    bucket_unit: Literal["seconds", "milliseconds"] = "seconds"
    scrape_seconds: PositiveSeconds = 15.0


_SOURCE = "llm_pipeline.adapters.prometheus.source"
_metrics = OnCall(f"{_SOURCE}:PrometheusMetrics")
ADAPTER = Adapter(
    config=PrometheusSource, open=lambda source, _place, _router: _metrics(source), probe=OnCall(f"{_SOURCE}:probe")
)
