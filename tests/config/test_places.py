"""Where servers run, and what splits traffic: ports without a kind are a server, or an Envoy, of this host."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from llm_pipeline.adapters.envoy.adapter import EnvoyPlace
from llm_pipeline.adapters.gateway_api.adapter import GatewayApiPlace
from llm_pipeline.adapters.kubernetes.adapter import KubernetesServer
from llm_pipeline.adapters.local.adapter import LocalServer
from llm_pipeline.adapters.openai.adapter import OpenAiServer
from llm_pipeline.adapters.prometheus.adapter import PrometheusSource
from llm_pipeline.config.deployment import TargetPlace
from llm_pipeline.config.router_place import MetricSource, RouterPlace
from llm_pipeline.config.server_place import OpenAiSlot, ServerPlace, ServerPorts

PLACE: TypeAdapter[Any] = TypeAdapter(ServerPlace)
ROUTER: TypeAdapter[Any] = TypeAdapter(RouterPlace)
KINDS: dict[str, TypeAdapter[Any]] = {"staging": PLACE, "router": ROUTER, "metrics": TypeAdapter(MetricSource)}
EXAMPLE = Path(__file__).parents[2] / "configs" / "deployments" / "gpu-cluster.yaml"
PORTS = {"http": 18400, "grpc": 18401, "metrics": 18402, "openai": 18403}


def place(staging: Any, comparison: ServerPorts | None = None) -> TargetPlace:
    blue, green = (
        ServerPorts(http=first, grpc=first + 1, metrics=first + 2, openai=first + 3) for first in (20000, 20010)
    )
    router = EnvoyPlace(port=20020, admin_port=20021)
    return TargetPlace(staging=staging, comparison=comparison, blue=blue, green=green, router=router)


@pytest.mark.parametrize("given", [PORTS, {"kind": "local", **PORTS}, ServerPorts(**PORTS)])
def test_ports_alone_are_a_server_of_this_host(given):
    staging = place(given).staging
    assert staging == LocalServer(**PORTS)
    assert staging.ports == ServerPorts(**PORTS)
    assert PLACE.validate_python(staging.model_dump(mode="json")) == staging


@pytest.mark.parametrize(
    "server",
    [
        ServerPorts(**PORTS, gpus=(1,), readable=("/opt/plugins",)),
        LocalServer(**PORTS, gpus=(1,), readable=("/opt/plugins",)),
    ],
)
def test_a_servers_ports_keep_all_that_they_say(server):
    ports = place(server).staging.ports
    assert type(ports) is ServerPorts
    assert ports.model_dump() == {**PORTS, "gpus": (1,), "readable": ("/opt/plugins",)}


def test_each_example_of_the_gpu_cluster_is_a_place_of_its_kind():
    lines = [line.removeprefix("#   ") for line in EXAMPLE.read_text().splitlines() if line.startswith("#   ")]
    found = re.findall(r"^(\w+):((?:.*\n?)(?:^ .*\n?)*)", "\n".join(lines), re.MULTILINE)
    examples = [(key, yaml.safe_load(f"{key}:{text}")[key]) for key, text in found]
    kinds = [type(KINDS[key].validate_python(example)) for key, example in examples]
    assert kinds == [
        LocalServer, KubernetesServer, OpenAiServer,
        EnvoyPlace, GatewayApiPlace, PrometheusSource,
    ]  # fmt: skip


def test_only_what_runs_on_this_host_takes_its_ports():
    beside = ServerPorts(http=18500, grpc=18501, metrics=18502, openai=18503)
    assert set(place(PORTS, beside).ports()) == {
        *PORTS.values(), *beside.by_name().values(), *range(20000, 20004), *range(20010, 20014), 20020, 20021,
    }  # fmt: skip
    assert list(place({"kind": "kubernetes"}).servers_here()) == ["blue", "green"]


OPENAI_SLOT = {"kind": "openai", "endpoint": {"url": "http://10.0.0.1:8000", "openai_model": "llm"}}


def with_slots(blue: Any, green: Any) -> TargetPlace:
    router = {"port": 18000, "admin_port": 18001}
    return TargetPlace.model_validate({"staging": PORTS, "blue": blue, "green": green, "router": router})


def openai_slot(**endpoint: object) -> dict[str, object]:
    return {"kind": "openai", "endpoint": {**OPENAI_SLOT["endpoint"], **endpoint}}


def test_slots_are_two_servers_with_openais_api_of_one_model_name() -> None:
    place = with_slots(OPENAI_SLOT, openai_slot(url="http://10.0.0.2:8000"))
    assert isinstance(place.blue, OpenAiSlot)
    assert place.blue.address == ("10.0.0.1", 8000)
    assert TargetPlace.model_validate(place.model_dump()) == place
    assert TargetPlace.model_validate_json(place.model_dump_json()) == place
    assert sorted(place.servers_here()) == ["staging"]


@pytest.mark.parametrize(
    ("green", "words"),
    [
        (PORTS, "both be ports of this host, or both of kind: openai"),
        (OPENAI_SLOT, "must be two servers"),
        (openai_slot(url="http://10.0.0.2:8000", openai_model="other"), "under one openai_model"),
        (openai_slot(url="http://10.0.0.2:8000/v1"), "url must end before /v1"),
        (openai_slot(url="http://10.0.0.2:8000/openai"), "without a path such as /openai"),
        (openai_slot(url="http://10.0.0.2:8000", openai_model=None), "openai_model must name"),
        ({"kind": "kubernetes", "endpoint": {"url": "http://10.0.0.2:8000"}}, "Input should be 'openai'"),
        ({"http": 20000, "grpc": 20001}, "green.metrics"),
    ],
)
def test_slots_that_do_not_fit_are_refused(green: Any, words: str) -> None:
    with pytest.raises(ValidationError) as raised:
        with_slots(OPENAI_SLOT, green)
    assert words in str(raised.value)
    assert len(raised.value.errors()) <= 2


ENVOY = {"port": 18000, "admin_port": 18001}
SERVICE = {"name": "llm", "port": 8000}
GATEWAY = {
    "kind": "gateway_api", "namespace": "llm", "route": "llm",
    "backends": {"blue": {"name": "llm-blue", "port": 8000}, "green": {"name": "llm-green", "port": 8000}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (ENVOY, EnvoyPlace), (EnvoyPlace(**ENVOY), EnvoyPlace), (GATEWAY, GatewayApiPlace),
    ],
)  # fmt: skip
def test_the_kind_of_a_router_decides_and_survives_being_written_down(given, kind):
    place = ROUTER.validate_python(given)
    assert type(place) is kind
    assert ROUTER.validate_python(place.model_dump(mode="json")) == place


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({**ENVOY, "kind": "nginx"}, "kind"),
        ({**ENVOY, "tls": {"certificate": "/a/tls.crt", "key": "/b/tls.key"}}, "in one directory"),
        ({**GATEWAY, "backends": {"blue": SERVICE, "green": SERVICE}}, "two Services"),
    ],
)
def test_a_router_that_cannot_be_is_refused(given, problem):
    with pytest.raises(ValidationError, match=problem):
        ROUTER.validate_python(given)
