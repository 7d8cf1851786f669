import http.server
import threading
import time
from collections.abc import Iterator

import pytest

from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.loadtest import server_metrics
from llm_pipeline.loadtest.outcome import ServerUse
from llm_pipeline.loadtest.server_metrics import ServerSampler, server_use
from llm_pipeline.serving.metrics_page import parse_metrics


def page(queue: int, served: int, tokens: int, active: int = 3) -> str:
    return f"""# HELP nv_inference_queue_duration_us Cumulative inference queuing duration in microseconds
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{{model="llm",version="1"}} {queue}
nv_inference_queue_duration_us{{model="preprocessing",version="1"}} {queue / 2}
nv_inference_request_success{{model="llm",version="1"}} {served}
nv_inference_request_success{{model="preprocessing",version="1"}} {served}
nv_gpu_utilization{{gpu_uuid="GPU-0"}} 0.5
nv_gpu_utilization{{gpu_uuid="GPU-1"}} 0.7
nv_gpu_memory_used_bytes{{gpu_uuid="GPU-0"}} 1000000000
nv_gpu_memory_used_bytes{{gpu_uuid="GPU-1"}} 2e9
llm_active_requests {active}
llm_kv_cache_usage 0.25
llm_tokens_total {tokens}
llm_input_tokens_total {10 * tokens}
"""


def used(*texts: str, **how: bool) -> ServerUse:
    return server_use([parse_metrics(text) for text in texts], **how)


def test_counters_are_counted_over_the_window_and_gauges_at_their_most():
    use = used(page(1000, 10, 100), page(2000, 15, 150, active=9), page(5000, 20, 300, active=1))
    assert use.queue_milliseconds == pytest.approx((4000 + 2000) / 10 / 1e3)
    assert (use.output_tokens, use.input_tokens) == (200, 2000)
    assert (use.active_requests, use.kv_cache_fraction) == (9, 0.25)
    assert use.gpu_utilization_fraction == pytest.approx(0.6)
    assert use.gpu_memory_bytes == 3_000_000_000
    assert use.samples == 3


def test_a_server_that_began_again_or_a_counter_that_appears_counts_from_zero():
    use = used(page(9000, 90, 900), page(9100, 91, 910), page(50, 1, 5), page(150, 2, 15))
    assert use.output_tokens == 10 + 15
    assert use.queue_milliseconds == pytest.approx(1.5 * (100 + 150) / (1 + 2) / 1e3)
    assert used("llm_active_requests 1\n", "llm_tokens_total 3\n").output_tokens == 3


def test_counters_of_a_server_that_cannot_be_read_at_the_end_are_not_told():
    texts = "llm_tokens_total 10\nllm_active_requests 3\n", "llm_tokens_total 25\nllm_active_requests 4\n"
    assert used(*texts).output_tokens == 15
    dead = used(*texts, read_last=False)
    assert (dead.output_tokens, dead.active_requests) == (None, 4)


def test_what_the_server_does_not_tell_is_none():
    use = used("")
    assert use.samples == 1
    assert {value for name, value in use if name != "samples"} == {None}
    assert used(page(10, 5, 1), page(10, 5, 1)).queue_milliseconds is None, "it served nothing"


@pytest.mark.parametrize(
    "text",
    [
        "llm_drafts_total {}\nllm_accepted_total {}\n",
        'vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {}\n'
        'vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {}\n',
    ],
    ids=["our model", "vllm serve"],
)
def test_speculation_is_told_as_tokens_a_step_and_none_where_nothing_was_guessed(text):
    assert used(text.format(100, 50), text.format(300, 550)).acceptance_length == 1 + 500 / 200
    assert used(text.format(100, 50), text.format(300, 50)).acceptance_length == 1
    assert used(text.format(100, 50), text.format(100, 50)).acceptance_length is None


def test_tensorrt_llm_has_names_of_its_own():
    text = (
        'nv_trt_llm_request_metrics{model="llm",request_type="active",version="1"} 7\n'
        'nv_trt_llm_request_metrics{model="llm",request_type="max",version="1"} 64\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="llm",version="1"} 0.4875\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="llm",version="1"} 2000\n'
    )
    use = used(text)
    assert (use.active_requests, use.kv_cache_fraction) == (7, 0.4875)


def test_labels_may_hold_anything_and_lines_that_are_no_samples_are_left_out():
    found = parse_metrics('# x{} 1\na{b="}, \\"c\\" {",d="e"} 1.5 1700000000\nf 2e3\nno number\n\n')
    assert list(found.values()) == [1.5, 2000.0]
    assert dict(next(iter(found))[1])["d"] == "e"


@pytest.mark.parametrize("value", ["NaN", "+Inf", "1e999"])
def test_values_that_are_not_finite_say_nothing_and_break_nothing(value: str):
    text = f"llm_tokens_total {value}\nllm_active_requests {value}\nllm_kv_cache_usage {value}\n"
    use = used(text, text)
    assert (use.output_tokens, use.active_requests, use.kv_cache_fraction, use.samples) == (None, None, None, 2)


class Handler(http.server.BaseHTTPRequestHandler):
    seen: list[str | None]

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization"))
        body = page(1000 * len(self.seen), len(self.seen), len(self.seen)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def metrics_url() -> Iterator[str]:
    Handler.seen = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()
        thread.join()


def test_a_sampler_reads_at_both_ends_and_in_between(metrics_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server_metrics, "_INTERVAL_SECONDS", 0.02)
    with ServerSampler(Endpoint(url="http://127.0.0.1:1", metrics_url=metrics_url)) as sampler:
        deadline = time.monotonic() + 30.0  # readings come late on a busy machine
        while len(Handler.seen) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
    use = sampler.use()
    assert use.samples == len(Handler.seen) >= 4
    assert use.output_tokens == use.samples - 1


def test_headers_go_to_the_endpoints_own_host_only(metrics_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GATEWAY_KEY", "s3cret")
    for host in ("127.0.0.1", "elsewhere.example"):
        endpoint = Endpoint(url=f"http://{host}:1", metrics_url=metrics_url, api_key_variable="GATEWAY_KEY")
        with ServerSampler(endpoint):
            pass
    assert Handler.seen == ["Bearer s3cret", "Bearer s3cret", None, None]


def test_metrics_that_cannot_be_read_say_nothing_and_break_nothing():
    with ServerSampler(Endpoint(url="http://127.0.0.1:1", metrics_url="http://127.0.0.1:9/metrics")) as sampler:
        pass
    assert sampler.use().samples == 0
    assert sampler.use().output_tokens is None
