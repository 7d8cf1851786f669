"""The Kubernetes runner against a real API server and its controllers, with the permissions that the page names.

Only the node is a double: `kubernetes_node.py` says what it plays. What all runners promise is shown with the same
server in `test_runner_contract.py`.
"""

from __future__ import annotations

import pytest
from documented_roles import documented_rules, without
from waiting import until

from llm_pipeline.adapters.kubernetes import api as kubernetes_api
from llm_pipeline.adapters.kubernetes import runner as kubernetes
from llm_pipeline.adapters.kubernetes.adapter import KubernetesEnvironment
from llm_pipeline.adapters.kubernetes.runner import KubernetesRunner
from llm_pipeline.base.errors import ConfigError, RemoteStageTransient
from llm_pipeline.runners.runner import Placement

pytestmark = pytest.mark.thorough

HERE = Placement(environment="control")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(kubernetes_api, "_WAITS_SECONDS", (0.01, 0.01, 0.01))


@pytest.fixture
def place(real_kubernetes_place):
    return real_kubernetes_place


def says(runner, job, line):
    until(lambda: line in runner.read_log(job, 0)[0])


def _quota(namespace):
    namespace.no_more_pods()


def _full(namespace):
    namespace.node.full = True


@pytest.mark.parametrize(
    ("trouble", "settings", "says"),
    [
        (_quota, {}, r"no pod was created: .*exceeded quota: none"),
        (_full, {}, "3 Insufficient gpu"),
        (lambda _: None, {"service_account": "builder"}, r'no pod was created: .*serviceaccount "builder" not found'),
    ],
    ids=["quota", "no node", "no account"],
)
def test_a_pod_that_does_not_start_in_time_is_told_with_the_words_of_the_cluster(
    place, real_kubernetes, trouble, settings, says
):
    trouble(real_kubernetes)
    runner = place.scripted("", start_timeout_minutes=0.05, **settings)
    job = runner.submit(place.request(), HERE)
    place.ended(runner, job)
    with pytest.raises(RemoteStageTransient, match=says):
        runner.outcome(job)


_SERVER_CHECKS = {
    "a label's value": ({"node_selector": {"a b": "c"}}, "nodeSelector"),
    "a toleration": ({"tolerations": ({"key": "not a key!"},)}, "tolerations"),
    "two volumes at one path": (
        {"claims": ({"claim": "a", "path": "/tmp"},)},  # noqa: S108 - the pod's own
        "mountPath",
    ),
}


@pytest.mark.parametrize(("settings", "field"), _SERVER_CHECKS.values(), ids=_SERVER_CHECKS)
def test_what_the_server_refuses_is_one_error_that_names_the_field(place, real_kubernetes, settings, field):
    known = place.deployment.environments["control"]
    claims = (*settings.pop("claims", ()), *(claim.model_dump() for claim in known.claims))
    document = known.model_dump() | settings | {"claims": claims}
    changed = KubernetesEnvironment.model_validate(document)
    runner = place.scripted("", **{name: getattr(changed, name) for name in (*settings, "claims")})
    with pytest.raises(ConfigError, match=rf"the cluster refuses it: .*{field}"):
        runner.submit(place.request(), HERE)
    assert real_kubernetes.names() == []


def test_the_probe_of_doctor_needs_no_more_than_the_role(place, real_kubernetes):
    environment = place.deployment.environments["control"]
    assert KubernetesRunner.probe(environment).startswith(f"namespace {real_kubernetes.namespace} answers and has 0")


def used(place, runner):
    """All that the runner ever asks of a cluster: a Job of its own, superseded, followed, and cancelled."""
    first = runner.submit(place.request(), HERE)
    says(runner, first, "here")
    job = runner.submit(place.request(lines=1), HERE)  # supersedes the first
    says(runner, job, "here")
    place.runner().cancel(job)
    assert not runner.is_active(job)


def test_the_documented_role_is_enough(place, real_kubernetes):
    used(place, place.scripted("echo here; sleep 600"))
    asked = set(real_kubernetes.calls)
    assert asked == {"POST jobs", "GET jobs", "DELETE jobs", "GET pods", "GET log"}


_VERBS = [
    (rule["resources"][0], verb)
    for rule in documented_rules("jobs")
    for verb in rule["verbs"]
    if rule["resources"] != ["events"]
]


@pytest.mark.parametrize(("resource", "verb"), _VERBS, ids=[f"{verb} {resource}" for resource, verb in _VERBS])
def test_each_permission_that_is_missing_is_one_error_that_names_it(place, real_kubernetes, resource, verb):
    real_kubernetes.account = real_kubernetes.server.account(
        real_kubernetes.namespace, without(documented_rules("jobs"), resource, verb)
    )
    with pytest.raises(ConfigError, match=rf'cannot {verb} resource "{resource}" .* in the namespace') as caught:
        used(place, place.scripted("echo here; sleep 600"))
    assert caught.value.hint == f"this account needs: {kubernetes._NEEDS}"


def test_without_events_the_error_says_what_can_be_known(place, real_kubernetes):
    rules = [rule for rule in documented_rules("jobs") if rule["resources"] != ["events"]]
    real_kubernetes.account = real_kubernetes.server.account(real_kubernetes.namespace, rules)
    real_kubernetes.no_more_pods()
    runner = place.scripted("", start_timeout_minutes=0.05)
    job = runner.submit(place.request(), HERE)
    place.ended(runner, job)
    with pytest.raises(RemoteStageTransient, match="the cluster says nothing about it"):
        runner.outcome(job)


def test_a_token_that_is_none_is_one_error(place, real_kubernetes):
    real_kubernetes.account = "no token of this cluster"
    with pytest.raises(ConfigError, match="Unauthorized"):
        place.scripted("").submit(place.request(), HERE)
