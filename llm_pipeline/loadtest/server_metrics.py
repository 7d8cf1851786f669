"""The server's own figures during a window: its Prometheus metrics, once a second.

A thread of the parent reads them, so that the client processes are not disturbed.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Self
from urllib.parse import urlsplit

from llm_pipeline.artifacts.repository_layout import MODEL_NAME
from llm_pipeline.base.bounded_http import call
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.loadtest.outcome import ServerUse
from llm_pipeline.serving.completions import METRICS
from llm_pipeline.serving.metrics_page import Series, metric_values, parse_metrics

_log = get_logger(__name__)


class Increases:
    """The growth of counters from page to page, like Prometheus' `increase`: one that fell has restarted at 0."""

    def __init__(self) -> None:
        self._last: dict[Series, float] | None = None
        self._sums: dict[Series, float] = {}

    def add(self, page: dict[Series, float]) -> None:
        """Take the next page."""
        if self._last is None:
            self._last = dict(page)
            self._sums = dict.fromkeys(page, 0.0)
            return
        for series, value in page.items():
            before = self._last.get(series, 0.0)
            self._sums[series] = self._sums.get(series, 0.0) + (value - before if value >= before else value)
            self._last[series] = value

    def total(self, name: str, wanted: Callable[[dict[str, str]], bool] = lambda _: True) -> float | None:
        """The growth of all series of a metric together; None without series."""
        found = [value for (metric, labels), value in self._sums.items() if metric == name and wanted(dict(labels))]
        return sum(found) if found else None


_INTERVAL_SECONDS = 1.0
_READ_SECONDS = 2.0


@dataclass
class Samples:
    """What has been read so far, a value a reading.

    `read_last` is False if the last reading failed: the counters of a dead server miss its last answers.
    """

    readings: int = 0
    read_last: bool = True
    counters: Increases = field(default_factory=Increases)
    active: list[float] = field(default_factory=list)
    kv_cache: list[float] = field(default_factory=list)
    gpu_utilization: list[float] = field(default_factory=list)
    gpu_memory: list[float] = field(default_factory=list)

    def add_page(self, page: dict[Series, float]) -> None:
        """Take one reading of the metrics of our models, of TensorRT-LLM's own in Triton, or of vLLM."""
        self.readings += 1
        self.counters.add(page)
        _extend(
            self.active,
            sum,
            metric_values(page, *METRICS.active)
            or metric_values(page, "nv_trt_llm_request_metrics", label=("request_type", "active")),
        )
        _extend(
            self.kv_cache,
            max,
            metric_values(page, *METRICS.kv_cache)
            or metric_values(page, "nv_trt_llm_kv_cache_block_metrics", label=("kv_cache_block_type", "fraction")),
        )
        _extend(self.gpu_utilization, _mean, metric_values(page, "nv_gpu_utilization"))
        _extend(self.gpu_memory, sum, metric_values(page, "nv_gpu_memory_used_bytes"))

    def use(self) -> ServerUse:
        """The readings as figures."""
        counters = self.counters if self.read_last else Increases()
        drafts, accepted = _first_total(counters, *METRICS.drafts), _first_total(counters, *METRICS.accepted)
        return ServerUse(
            queue_milliseconds=self._queue_milliseconds(),
            active_requests=_whole(max(self.active, default=None)),
            kv_cache_fraction=max(self.kv_cache, default=None),
            gpu_utilization_fraction=_mean(self.gpu_utilization) if self.gpu_utilization else None,
            gpu_memory_bytes=_whole(max(self.gpu_memory, default=None)),
            input_tokens=_first_total(counters, *METRICS.input_tokens),
            output_tokens=_first_total(counters, *METRICS.output_tokens),
            acceptance_length=1 + (accepted or 0) / drafts if drafts else None,
            samples=self.readings,
        )

    def _queue_milliseconds(self) -> float | None:
        """Time in the queues of all models, an ensemble's steps among them, by the requests that the model served."""
        seconds = self.counters.total("vllm:request_queue_time_seconds_sum")
        started = self.counters.total("vllm:request_queue_time_seconds_count")
        if seconds is not None and started:
            return 1e3 * seconds / started
        waited = self.counters.total("nv_inference_queue_duration_us")
        served = self.counters.total("nv_inference_request_success", lambda of: of.get("model") == MODEL_NAME)
        return None if waited is None or not served else waited / served / 1e3


class ServerSampler:
    """Reads a server's metrics from its start to its end, and about once a second in between; a context manager.

    Metrics that cannot be read do not fail the load test: their figures stay None.

    Args:
        endpoint: The server; its headers go to metrics on the same host only.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._samples, self._stop = Samples(), threading.Event()
        encrypted = (endpoint.metrics_url or "").startswith("https:")
        self._tls = ssl.create_default_context(cafile=endpoint.ca_file) if encrypted else None
        self._unreadable: set[str] = set()
        self._thread = threading.Thread(target=self._watch, name="server metrics", daemon=True)

    def __enter__(self) -> Self:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        self._stop.set()
        self._thread.join()
        if error is None:
            self._sample()

    def use(self) -> ServerUse:
        """What the readings so far say."""
        return self._samples.use()

    def _watch(self) -> None:
        while not self._stop.wait(_INTERVAL_SECONDS):
            try:
                self._sample()
            except Exception:  # noqa: BLE001 - the next reading may be better; none at all is told at the end
                _log.exception("metrics could not be read", url=self._endpoint.metrics_url)

    def _sample(self) -> None:
        page = self._read()
        self._samples.read_last = page is not None
        if page is not None:
            self._samples.add_page(page)

    def _read(self) -> dict[Series, float] | None:
        if (url := self._endpoint.metrics_url) is None:
            return None
        same_host = urlsplit(url).hostname == urlsplit(self._endpoint.url).hostname
        headers = self._endpoint.headers() if same_host else {}
        try:
            answer = call(url, seconds=_READ_SECONDS, headers=headers, tls=self._tls)
            if answer.status == HTTPStatus.OK:
                return parse_metrics(answer.text)
            problem = f"HTTP {answer.status}"
        except (OSError, ValueError) as error:
            problem = str(error)
        if url not in self._unreadable:
            self._unreadable.add(url)
            _log.warning("metrics cannot be read", url=url, error=problem)
        return None


def _first_total(counters: Increases, *names: str) -> int | None:
    """The growth of the first of these counters that exists."""
    found = (counters.total(name) for name in names)
    return _whole(next((total for total in found if total is not None), None))


def _extend(values: list[float], combine: Callable[[list[float]], float], found: list[float]) -> None:
    if found:
        values.append(combine(found))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
