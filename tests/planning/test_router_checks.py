"""What a router cannot do for a policy is told by the plan, not by the canary, hours and GPUs later."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.planning.plan import plan_release
from llm_pipeline.planning.release_checks import check_routers, router_warnings
from llm_pipeline.release.loading import load_release

ROUTER = "    router: { port: 18000, admin_port: 18001 }"
STAGING = "    staging: { http: 18400, grpc: 18401, metrics: 18402, openai: 18403 }"
GATEWAY = """    router:
      kind: gateway_api
      namespace: llm
      route: llm
      backends: { blue: { name: blue, port: 8000 }, green: { name: green, port: 8000 } }"""
COUNTED = """
    metrics:
      kind: prometheus
      url: http://prometheus:9090
      requests: requests_total
      errors: errors_total
      slot_label: service
      slots: { blue: blue, green: green }"""
STEPS = "  steps_percent: [5, 25, 50, 100]"


@pytest.fixture
def problem(configs: Path, edit):
    def told(router: str, steps: str = STEPS) -> str:
        edit("deployments/local.yaml", ROUTER, router)
        edit("policies/demo.yaml", STEPS, steps)
        with pytest.raises(ConfigError) as raised:
            plan_release(configs / "releases" / "demo.yaml", store_seconds=0)
        assert raised.value.hint
        return raised.value.message

    return told


def test_a_router_without_a_record_of_requests_needs_metrics(problem) -> None:
    assert problem(GATEWAY) == "target cpu: router gateway_api keeps no record of requests, and no metrics are named"


OPENAI_SLOTS = """    blue: { kind: openai, endpoint: { url: http://10.0.0.1:8000, openai_model: llm } }
    green: { kind: openai, endpoint: { url: http://10.0.0.2:8000, openai_model: llm } }"""


@pytest.fixture
def on_openai(configs: Path, edit):
    """Have the slots of the demo's place be servers with OpenAI's API."""

    def change(slots: str = OPENAI_SLOTS) -> None:
        lines = (configs / "deployments" / "local.yaml").read_text().splitlines()
        servers = [line for line in lines if line.startswith(("    blue:", "    green:"))]
        for line, new in zip(servers[:2], slots.splitlines(), strict=True):  # the place cpu is the first
            edit("deployments/local.yaml", line, new)

    return change


def test_an_envoy_splits_the_traffic_of_servers_with_openais_api(configs: Path, on_openai) -> None:
    on_openai()
    loaded = load_release(configs / "releases" / "demo.yaml")
    check_routers(loaded)
    assert list(router_warnings(loaded)) == [
        "cpu: nothing starts servers with OpenAI's API: before its canary, serve the release's checkpoint as llm in "
        "the slot that is not in production"
    ]


def test_a_gateway_passes_no_users_of_openais_api_on(problem, on_openai) -> None:
    on_openai()
    assert "router gateway_api passes on Triton's paths only" in problem(GATEWAY + COUNTED)


@pytest.mark.parametrize("url", ["http://vllm.example.com:8000", "https://10.0.0.1:8000"])
def test_an_envoy_needs_addresses_of_plain_http(problem, on_openai, url: str) -> None:
    on_openai(OPENAI_SLOTS.replace("http://10.0.0.1:8000", url))
    assert f"Envoy reaches servers by http:// and an IP address, and a slot's url is {url}" in problem(ROUTER)


def test_a_drill_needs_servers_that_are_started_here(problem, on_openai, edit) -> None:
    on_openai()
    edit("releases/demo.yaml", "policy: demo", f"policy: demo\n{DRILL}")
    assert "a drill needs servers that are started here" in problem(ROUTER)


def test_what_a_router_can_do_is_no_problem(configs: Path, edit) -> None:
    edit("deployments/local.yaml", ROUTER, GATEWAY + COUNTED)
    edit("policies/demo.yaml", STEPS, "  steps_percent: [0.1, 0.3, 5, 100]")
    check_routers(load_release(configs / "releases" / "demo.yaml"))


def test_what_users_can_reach_at_somebody_elses_router_is_told(configs: Path, edit) -> None:
    edit("deployments/local.yaml", ROUTER, GATEWAY + COUNTED)
    (told,) = router_warnings(load_release(configs / "releases" / "demo.yaml"))
    assert told.startswith("cpu: the operator of its gateway_api router has to refuse users paths beyond OpenAI's API")
    assert told in plan_release(configs / "releases" / "demo.yaml", store_seconds=0).warnings


OWN, OPENAI_ONLY = "engine: vllm\nserver: vllm", "only_openai: true, "
DRILL = "drill: { delay_milliseconds: 300 }"


@pytest.mark.parametrize(
    ("target", "router", "drill", "told"),
    [
        (OWN, OPENAI_ONLY, "", "target cpu: there is no command vllm beside "),
        (OWN, "", "", "target cpu: vllm has none of Triton's routes"),
        (OWN, OPENAI_ONLY, DRILL, "target cpu: a drill is made by the model's code in Triton, and vllm has none"),
        ("engine: openvino_cpu\nserver: vllm", OPENAI_ONLY, "",
         "target cpu: server of engine openvino_cpu may be triton, not vllm"),
    ],
)  # fmt: skip
def test_what_an_engines_own_server_lacks_is_told(
    configs: Path, edit, *, target: str, router: str, drill: str, told: str
) -> None:
    edit("targets/cpu.yaml", "engine: openvino_cpu", target)
    edit("deployments/local.yaml", ROUTER, ROUTER.replace("{ ", "{ " + router, 1))
    edit("releases/demo.yaml", "policy: demo", f"policy: demo\n{drill}")
    with pytest.raises(ConfigError) as refused:
        check_routers(load_release(configs / "releases" / "demo.yaml"))
    assert any(line.startswith(told) for line in refused.value.message.splitlines())
