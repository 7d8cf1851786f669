"""Routes on a real API server: permissions one by one, and others who apply the same objects.

What routers do with such a server otherwise is shown by the tests of each (`real` among their parameters).
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from documented_roles import documented_rules, without
from kubernetes_server import APPLY, Refusal
from real_resources import RealResources
from router_contract import HTTP_ROUTE, NAMESPACE, KubernetesSubject, gateway_subject, split

from llm_pipeline.canary.router import RouterConflict, RouterUnavailable, all_to

pytestmark = pytest.mark.thorough

_ROUTE = f"/apis/gateway.networking.k8s.io/v1/namespaces/{NAMESPACE}/httproutes/llm"
_SLICES = f"/apis/discovery.k8s.io/v1beta1/namespaces/{NAMESPACE}/endpointslices"


@pytest.fixture
def subject(real_cluster: RealResources) -> KubernetesSubject:
    return gateway_subject(real_cluster)  # type: ignore[arg-type]


@pytest.fixture
def account(real_cluster: RealResources):
    """Gives the router other rules for a while."""
    allowed = real_cluster.account

    def change(rules: list[dict[str, Any]]) -> None:
        real_cluster.account = real_cluster.server.account(NAMESPACE, rules)

    yield change
    real_cluster.account = allowed


@pytest.mark.parametrize("verb", ["get", "update"])
def test_each_permission_that_is_missing_is_one_error_that_names_it(subject, account, verb):
    plural = "httproutes"
    account(without(documented_rules("routers"), plural, verb))
    with pytest.raises(RouterUnavailable, match=f'cannot {verb} resource "{plural}"') as caught:
        subject.router.write(split(500), None)
    assert caught.value.hint == f"this account needs: get and update {plural}"


def test_without_endpoint_slices_nothing_is_known_of_a_slot(subject, account):
    subject.api.server.ask("DELETE", _SLICES)  # another file's tests left some in the same cluster
    assert subject.router.usable("green") is False
    account(without(documented_rules("routers"), "endpointslices", "list"))
    assert subject.router.usable("green") is None


def applied(subject: KubernetesSubject, *, force: bool = False, **spec: Any) -> None:
    """Another hand applies the route, server-side, as a GitOps tool does."""
    document = copy.deepcopy(HTTP_ROUTE)
    document["spec"] = {"parentRefs": HTTP_ROUTE["spec"]["parentRefs"], **spec}
    query = f"fieldManager=gitops&force={str(force).lower()}"
    subject.api.server.ask("PATCH", f"{_ROUTE}?{query}", document, kind=APPLY)  # type: ignore[attr-defined]


def test_a_tool_that_applies_the_weights_that_it_knows_is_refused_unless_it_forces_them(subject):
    theirs = {"hostnames": ["llm.example.com"], "rules": HTTP_ROUTE["spec"]["rules"]}
    subject.api.server.ask("DELETE", _ROUTE)
    applied(subject, **theirs)
    revision = subject.router.write(split(500), None)
    with pytest.raises(Refusal, match=r'conflict with "llm-pipeline".*spec.rules') as caught:
        applied(subject, **theirs)
    assert caught.value.status == 409
    assert subject.router.read() == (split(500), revision)

    applied(subject, force=True, **theirs)
    assert subject.router.read()[0].weights["green"] == 0
    with pytest.raises(RouterConflict):
        subject.router.write(split(2500), revision)
    subject.router.write(all_to("blue", owner="rollback", epoch=2), None)
    assert subject.router.read()[0].same_traffic(all_to("blue", owner="rollback", epoch=2))


def test_a_tool_that_leaves_the_rules_out_may_apply_the_rest_at_any_time(subject):
    subject.api.server.ask("DELETE", _ROUTE)
    applied(subject, rules=HTTP_ROUTE["spec"]["rules"])
    subject.router.write(split(500), None)
    applied(subject, hostnames=["other.example.com"])
    assert subject.router.read()[0] == split(500)
    assert subject.document["spec"]["hostnames"] == ["other.example.com"]
