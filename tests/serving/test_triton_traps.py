"""What Triton (2.51) does and nobody expects, so that our answers to it stay needed: a newer server may fail these.

Kept elsewhere: live requests and orphans at a stop (`test_triton_server.py`,
`packaged/test_served_model.py`), errors and cut streams under HTTP 200 (`test_client.py`, and with the warm-up that a
first stream needs, `../loadtest/test_faulty_servers.py`), numpy 2 (`test_triton_server.py`).
"""

import asyncio
import base64
import json
from collections.abc import Callable, Iterator

import httpx
import pytest
from faulty_server import MODEL_PYTHON, TRITON_HOME, FaultyServer, faulty_server
from waiting import until

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.policy import StagingPolicy
from llm_pipeline.serving.client import Generation, GenerationClient, GenerationRequest
from llm_pipeline.serving.probes import probe

pytestmark = pytest.mark.slow


KINDS = {"text_input": "STRING", "max_tokens": "INT64", "stream": "BOOL", "ignore_eos": "BOOL"}
ENSEMBLE = {
    "name": "ensemble",
    "platform": "ensemble",
    "max_batch_size": 0,
    "input": [{"name": name, "data_type": f"TYPE_{kind}", "dims": [1]} for name, kind in KINDS.items()],
    "output": [{"name": "text_output", "data_type": "TYPE_STRING", "dims": [1]}],
    "ensemble_scheduling": {
        "step": [
            {
                "model_name": "llm", "model_version": -1, "input_map": {name: name for name in KINDS},
                "output_map": {"text_output": "text_output"},
            }
        ]
    },
}  # fmt: skip
BROKEN_CONFIG = {
    "name": "broken", "backend": "python", "max_batch_size": 0, "instance_group": [{"kind": "KIND_CPU", "count": 1}],
    "input": [{"name": "x", "data_type": "TYPE_INT32", "dims": [1]}],
    "output": [{"name": "y", "data_type": "TYPE_INT32", "dims": [1]}],
}  # fmt: skip
BROKEN_CODE = b"""
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("no kernel image is available")
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[FaultyServer]:
    if not TRITON_HOME.exists() or not MODEL_PYTHON.exists():
        pytest.skip("no tritonserver or no model interpreter here")
    with faulty_server(tmp_path_factory.mktemp("server")) as server:
        yield server


def ask(served: FaultyServer, path: str, body: object = None) -> tuple[int, str]:
    method, content = ("GET", None) if body is None else ("POST", json.dumps(body))
    answer = httpx.request(method, f"{served.server.http_url}{path}", content=content, timeout=10)
    return answer.status_code, answer.text


def load(served: FaultyServer, config: dict[str, object], code: bytes) -> tuple[int, str]:
    """Load a model that is nowhere on disk."""
    parameters = {"config": json.dumps(config), "file:1/model.py": base64.b64encode(code).decode()}
    return ask(served, f"/v2/repository/models/{config['name']}/load", {"parameters": parameters})


def metric(served: FaultyServer, name: str, labels: str = "") -> float:
    lines = httpx.get(served.endpoint.metrics_url, timeout=5).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name) and labels in line)


def generate(served: FaultyServer, *requests: GenerationRequest) -> list[Generation]:
    async def together() -> list[Generation]:
        async with GenerationClient.of(served.endpoint, timeout_seconds=10) as client:
            return await asyncio.gather(*(client.stream(request) for request in requests))

    return asyncio.run(together())


def cancelled(served: FaultyServer, leave: Callable[[], None]) -> float:
    """How many requests ended as cancelled, once all have ended, after a client has left."""
    before = metric(served, "llm_requests_total", '"cancelled"')
    leave()
    until(lambda: metric(served, "llm_active_requests") == 0)
    return metric(served, "llm_requests_total", '"cancelled"') - before


LONG = {"text_input": "a b", "max_tokens": 250, "stream": True, "ignore_eos": True}


def leave_over_http(served: FaultyServer, model: str) -> None:
    async def leave() -> None:
        async with GenerationClient.of(served.endpoint) as client:
            url = f"{served.server.http_url}/v2/models/{model}/generate_stream"
            async with client.session.post(url, json=LONG) as answer:
                await answer.content.readline()

    asyncio.run(leave())


def test_a_client_that_leaves_is_noticed(served):
    served.order("slow", factor=10)  # so that the slowest client has left before the last token
    assert cancelled(served, lambda: leave_over_http(served, "llm")) == 1
    served.order()


def test_a_client_that_leaves_is_never_noticed_through_an_ensemble(served):
    assert load(served, ENSEMBLE, b"")[0] == 200
    assert cancelled(served, lambda: leave_over_http(served, "ensemble")) == 0


def test_a_failed_load_leaves_the_server_ready_and_only_the_failed_model_not(served):
    status, reason = load(served, BROKEN_CONFIG, BROKEN_CODE)
    assert status == 400
    assert "no kernel image is available" in reason
    assert ask(served, "/v2/health/ready")[0] == 200, "as we start it; by default it would be unready for good"
    assert ask(served, "/v2/models/broken/ready")[0] != 200
    assert generate(served, GenerationRequest("a b", 2, ignore_eos=True))[0].ok


def test_several_responses_where_one_is_expected_are_an_error_under_http_200(served):
    status, answer = ask(served, "/v2/models/llm/generate", {**LONG, "max_tokens": 3})
    assert status == 200
    assert "exactly 1 response" in json.loads(answer)["error"]


def test_the_servers_own_times_are_not_those_of_answers(served):
    names = "nv_inference_request_duration_us", "nv_inference_request_success"
    before = [metric(served, name, 'model="llm"') for name in names]
    answers = generate(served, *(GenerationRequest(f"a {number}", 60, ignore_eos=True) for number in range(5)))
    microseconds, requests = (metric(served, name, 'model="llm"') - b for name, b in zip(names, before, strict=True))
    assert min(answer.total_seconds for answer in answers) >= 60 * 0.004
    assert microseconds / requests / 1e6 < 0.1, "a decoupled model's execute() returns at once"


def test_a_model_whose_process_is_dead_stays_ready_and_the_probes_say_that_it_is_not(served):
    served.kill_model()
    assert ask(served, "/v2/models/llm/ready")[0] == 200
    judgement = asyncio.run(probe(served.endpoint, [], StagingPolicy(ready_timeout_seconds=0.5), timeout_seconds=3))
    assert judgement.verdict is Verdict.NO_GO
    assert "The server does not generate" in judgement.summary
