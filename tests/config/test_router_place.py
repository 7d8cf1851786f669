"""What splits traffic: ports without a kind are an Envoy of this host, as they always were."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from llm_pipeline.adapters.aws.adapter import AwsAlbPlace
from llm_pipeline.adapters.envoy.adapter import EnvoyPlace, ExistingEnvoyPlace
from llm_pipeline.adapters.gateway_api.adapter import GatewayApiPlace
from llm_pipeline.adapters.istio.adapter import IstioPlace
from llm_pipeline.config.deployment import RouterPlace

PLACE: TypeAdapter[Any] = TypeAdapter(RouterPlace)
ARN = "arn:aws:elasticloadbalancing:eu-central-1:123456789012"
GROUPS = {"blue": f"{ARN}:targetgroup/blue/0123456789abcdef", "green": f"{ARN}:targetgroup/green/0123456789abcdef"}
ENVOY = {"port": 18000, "admin_port": 18001}
EXISTING = {
    "kind": "existing_envoy", "directory": "/etc/envoy/xds", "admin_url": "http://10.0.0.4:9901", "port": 8443,
    "access_log": "/var/log/envoy/access.jsonl",
}  # fmt: skip
GATEWAY = {
    "kind": "gateway_api", "namespace": "llm", "route": "llm",
    "backends": {"blue": {"name": "llm-blue", "port": 8000}, "green": {"name": "llm-green", "port": 8000}},
}  # fmt: skip
ISTIO = {
    "kind": "istio", "namespace": "llm", "virtual_service": "llm",
    "backends": {"blue": {"host": "llm", "subset": "blue"}, "green": {"host": "llm", "subset": "green"}},
}  # fmt: skip
ALB = {
    "kind": "aws_alb",
    "rule": f"{ARN}:listener-rule/app/llm/0123456789abcdef/0123456789abcdef/0123456789abcdef",
    "target_groups": GROUPS,
}


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (ENVOY, EnvoyPlace), (EnvoyPlace(**ENVOY), EnvoyPlace), (EXISTING, ExistingEnvoyPlace),
        (GATEWAY, GatewayApiPlace), (ISTIO, IstioPlace), (ALB, AwsAlbPlace),
    ],
)  # fmt: skip
def test_the_kind_decides_and_survives_being_written_down(given, kind):
    place = PLACE.validate_python(given)
    assert type(place) is kind
    assert PLACE.validate_python(place.model_dump(mode="json")) == place


def test_only_an_envoy_of_ours_takes_ports_of_this_host():
    assert PLACE.validate_python(ENVOY).ports_here() == (18000, 18001)
    assert [PLACE.validate_python(one).ports_here() for one in (EXISTING, GATEWAY, ISTIO, ALB)] == [()] * 4


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({**ENVOY, "kind": "nginx"}, "kind"),
        ({**ENVOY, "tls": {"certificate": "/a/tls.crt", "key": "/b/tls.key"}}, "in one directory"),
        ({**EXISTING, "access_log": "/etc/envoy/xds/access.jsonl"}, "must not be in the directory"),
        ({**EXISTING, "admin_url": "http://me:secret@host:9901"}, "without credentials"),
        ({**ALB, "rule": ALB["rule"].replace("listener-rule", "listener")}, "rule"),
        ({**ALB, "target_groups": {**GROUPS, "green": GROUPS["blue"]}}, "two target groups"),
    ],
)
def test_what_cannot_be_is_refused(given, problem):
    with pytest.raises(ValidationError, match=problem):
        PLACE.validate_python(given)
