"""Manifests that `llm-pipeline render` writes, applied server-side to a real API server, as GitOps tools do.

The server is older than `preStop.sleep` (Kubernetes 1.30), which is left out, and than the kinds of autoscalers and
disruption budgets: those are checked by their schemas only (`test_kubernetes_manifests.py`).
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("kubernetes_validate")

from kubernetes_server import APPLY, MERGE, KubernetesServer
from test_kubernetes_manifests import VARIANTS, manifests_of, pod_templates, workload_of

pytestmark = pytest.mark.thorough

Manifest = dict[str, Any]

_WITH_DEPLOYMENT = [variant for variant in VARIANTS if "Deployment" in manifests_of(variant)]
_PATHS = {"Deployment": "/apis/apps/v1/namespaces/{}/deployments", "Service": "/api/v1/namespaces/{}/services"}


@pytest.fixture(scope="module")
def namespace(kubernetes_server: KubernetesServer) -> str:
    return kubernetes_server.namespace()


def apply(server: KubernetesServer, namespace: str, manifest: Manifest) -> Manifest:
    """Apply it in this namespace; the object as it is now, which has to say all that the manifest says."""
    manifest = copy.deepcopy(manifest)
    manifest["metadata"]["namespace"] = namespace
    for template in pod_templates(manifest):
        for container in template["spec"]["containers"]:
            container.pop("lifecycle", None)
    path = f"{_PATHS[manifest['kind']].format(namespace)}/{manifest['metadata']['name']}"
    found = server.ask("PATCH", f"{path}?fieldManager=gitops", manifest, kind=APPLY)
    assert_within(manifest, found, "")
    return found


def assert_within(said: Any, kept: Any, where: str) -> None:
    """Whether an object has all of a manifest: an unknown field would be gone without a word."""
    if isinstance(said, dict):
        for name, value in said.items():
            assert name in kept or value in ({}, [], None), f"{where}.{name} is gone"
            if name in kept:
                assert_within(value, kept[name], f"{where}.{name}")
    elif isinstance(said, list):
        assert len(said) == len(kept), where
        for number, (one, other) in enumerate(zip(said, kept, strict=True)):
            assert_within(one, other, f"{where}[{number}]")
    elif where.rpartition(".")[2] not in ("cpu", "memory", "sizeLimit"):  # quantities come back in another unit
        assert said == kept, where


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_applied_is_kept_whole_and_applying_it_again_changes_nothing(kubernetes_server, namespace, variant):
    for manifest in manifests_of(variant).values():
        if manifest["kind"] in _PATHS:
            apply(kubernetes_server, namespace, manifest)
            first = apply(kubernetes_server, namespace, manifest)
            assert apply(kubernetes_server, namespace, manifest)["spec"] == first["spec"]


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant not in _WITH_DEPLOYMENT])
def test_the_pods_of_a_group_are_accepted(kubernetes_server, namespace, variant):
    """A LeaderWorkerSet's templates become pods by its own controller: they are shown in a Deployment of no pods."""
    for number, template in enumerate(pod_templates(workload_of(variant))):
        spec = {"replicas": 0, "selector": {"matchLabels": template["metadata"]["labels"]}, "template": template}
        metadata = {"name": f"{variant.replace('_', '-')}-{number}"}
        deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
        apply(kubernetes_server, namespace, deployment)


@pytest.mark.parametrize("variant", _WITH_DEPLOYMENT)
def test_a_new_apply_leaves_the_number_of_servers_to_the_autoscaler(kubernetes_server, namespace, variant):
    manifest = manifests_of(variant)["Deployment"]
    apply(kubernetes_server, namespace, manifest)
    path = f"{_PATHS['Deployment'].format(namespace)}/{manifest['metadata']['name']}/scale?fieldManager=autoscaler"
    kubernetes_server.ask("PATCH", path, {"spec": {"replicas": 3}}, kind=MERGE)
    assert apply(kubernetes_server, namespace, manifest)["spec"]["replicas"] == 3
