"""The server's own figures during a window: its Prometheus metrics, once a second.

A thread of the parent reads them, so that the client processes are not disturbed.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from itertools import pairwise
from statistics import fmean
from typing import Self
from urllib.parse import urlsplit

from llm_pipeline.artifacts.repository_layout import MODEL_NAME
from llm_pipeline.base.bounded_http import call
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.loadtest.outcome import ServerUse
from llm_pipeline.serving.completions import Metrics
from llm_pipeline.serving.metrics_page import Label, Series, metric_values, parse_metrics

_log = get_logger(__name__)

Page = dict[Series, float]

_INTERVAL_SECONDS = 1.0
_READ_SECONDS = 2.0
_ACTIVE_OF_TENSORRT_LLM = "nv_trt_llm_request_metrics", ("request_type", "active")
_CACHE_OF_TENSORRT_LLM = "nv_trt_llm_kv_cache_block_metrics", ("kv_cache_block_type", "fraction")


def increase(pages: Sequence[Page], name: str, label: Label | None = None) -> float | None:
    """The growth of all series of a metric together, like Prometheus' `increase`; None without series.

    One that fell has restarted at 0, and one that appears has begun there.
    """
    if not any(metric_values(page, name, label=label) for page in pages):
        return None
    grown = 0.0
    for before, page in pairwise(pages):
        for (metric, labels), value in page.items():
            if metric == name and (label is None or label in labels):
                last = before.get((metric, labels), 0.0)
                grown += value - last if value >= last else value
    return grown


def server_use(pages: Sequence[Page], *, read_last: bool = True) -> ServerUse:
    """Readings of the metrics of our models, of TensorRT-LLM's own in Triton, or of vLLM, as figures.

    Args:
        pages: In order.
        read_last: Whether the last reading succeeded: the counters of a dead server miss its last answers.
    """

    def readings(
        combine: Callable[[Sequence[float]], float], names: Sequence[str], own: tuple[str, Label] | None = None
    ) -> list[float]:
        """What each page says of a gauge: by the first of these names that it has, or by TensorRT-LLM's own."""
        found = (metric_values(page, *names) or (own and metric_values(page, own[0], label=own[1])) for page in pages)
        return [combine(values) for values in found if values]

    def total(names: Sequence[str]) -> int | None:
        """The growth of the first of these counters that exists."""
        found = (increase(counted, name) for name in names)
        return _whole(next((grown for grown in found if grown is not None), None))

    counted = pages if read_last else ()
    drafts, accepted = total(Metrics.drafts), total(Metrics.accepted)
    utilization, memory = readings(fmean, ["nv_gpu_utilization"]), readings(sum, ["nv_gpu_memory_used_bytes"])
    return ServerUse(
        queue_milliseconds=_queue_milliseconds(pages),
        active_requests=_whole(max(readings(sum, Metrics.active, _ACTIVE_OF_TENSORRT_LLM), default=None)),
        kv_cache_fraction=max(readings(max, Metrics.kv_cache, _CACHE_OF_TENSORRT_LLM), default=None),
        gpu_utilization_fraction=fmean(utilization) if utilization else None,
        gpu_memory_bytes=_whole(max(memory, default=None)),
        input_tokens=total(Metrics.input_tokens),
        output_tokens=total(Metrics.output_tokens),
        acceptance_length=1 + (accepted or 0) / drafts if drafts else None,
        samples=len(pages),
    )


def _queue_milliseconds(pages: Sequence[Page]) -> float | None:
    """Time in the queues of all models, an ensemble's steps among them, by the requests that the model served."""
    seconds = increase(pages, "vllm:request_queue_time_seconds_sum")
    started = increase(pages, "vllm:request_queue_time_seconds_count")
    if seconds is not None and started:
        return 1e3 * seconds / started
    waited = increase(pages, "nv_inference_queue_duration_us")
    served = increase(pages, "nv_inference_request_success", ("model", MODEL_NAME))
    return None if waited is None or not served else waited / served / 1e3


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


class ServerSampler:
    """Reads a server's metrics from its start to its end, and about once a second in between; a context manager.

    Metrics that cannot be read do not fail the load test: their figures stay None.

    Args:
        endpoint: The server; its headers go to metrics on the same host only.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._url, same_host = endpoint.metrics_url, False
        if self._url is not None:
            same_host = urlsplit(self._url).hostname == urlsplit(endpoint.url).hostname
        self._headers = endpoint.headers() if same_host else {}
        encrypted = (self._url or "").startswith("https:")
        self._tls = ssl.create_default_context(cafile=endpoint.ca_file) if encrypted else None
        self._pages, self._read_last, self._stop = list[Page](), True, threading.Event()
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
        return server_use(self._pages, read_last=self._read_last)

    def _watch(self) -> None:
        while not self._stop.wait(_INTERVAL_SECONDS):
            self._sample()

    def _sample(self) -> None:
        if self._url is None:
            return
        try:
            answer = call(self._url, seconds=_READ_SECONDS, headers=self._headers, tls=self._tls)
            problem = "" if answer.status == HTTPStatus.OK else f"HTTP {answer.status}"
            if not problem:
                self._pages.append(parse_metrics(answer.text))
        except (OSError, ValueError) as error:
            problem = str(error) or type(error).__name__
        if problem and self._read_last:
            _log.warning("metrics cannot be read", url=self._url, error=problem)
        self._read_last = not problem
