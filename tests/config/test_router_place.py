"""What splits traffic: ports without a kind are an Envoy of this host, as they always were."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from llm_pipeline.adapters.envoy.adapter import EnvoyPlace
from llm_pipeline.adapters.gateway_api.adapter import GatewayApiPlace
from llm_pipeline.config.deployment import RouterPlace

PLACE: TypeAdapter[Any] = TypeAdapter(RouterPlace)
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
def test_the_kind_decides_and_survives_being_written_down(given, kind):
    place = PLACE.validate_python(given)
    assert type(place) is kind
    assert PLACE.validate_python(place.model_dump(mode="json")) == place


def test_only_an_envoy_of_ours_takes_ports_of_this_host():
    assert PLACE.validate_python(ENVOY).ports_here() == (18000, 18001)
    assert PLACE.validate_python(GATEWAY).ports_here() == ()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({**ENVOY, "kind": "nginx"}, "kind"),
        ({**ENVOY, "tls": {"certificate": "/a/tls.crt", "key": "/b/tls.key"}}, "in one directory"),
        ({**GATEWAY, "backends": {"blue": SERVICE, "green": SERVICE}}, "two Services"),
    ],
)
def test_what_cannot_be_is_refused(given, problem):
    with pytest.raises(ValidationError, match=problem):
        PLACE.validate_python(given)
