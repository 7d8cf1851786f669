"""Manifests against Kubernetes' own schemas, the recorded ones of other people's kinds, and golden files.

After a change that is meant, write the golden files again: set UPDATE_GOLDEN=1 for this test file.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from pydantic import TypeAdapter

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.environment import ClaimMount
from llm_pipeline.config.kubernetes_serving import ServingManifestOptions
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.config.store import Signing, Store, store_settings
from llm_pipeline.config.target import Target
from llm_pipeline.serving.kubernetes_manifests import ServedRelease, render_manifests, to_yaml

HERE = Path(__file__).parent
GOLDEN = HERE / "kubernetes_golden"
SCHEMAS = {
    document["schema"]["properties"]["kind"]["const"]: document["schema"]
    for document in (json.loads(path.read_text()) for path in sorted((HERE / "kubernetes_schemas").glob("*.json")))
}
TARGETS = HERE.parents[1] / "configs" / "targets"
KUBERNETES = "1.37"
IMAGE = f"registry.example.com/llm-pipeline-serving@sha256:{'a' * 64}"
S3 = store_settings(
    uri="s3://ml-releases/llm-pipeline",
    signing=Signing(
        private_key="/etc/llm-pipeline/release.key",
        password_variable="SIGNING_PASSWORD",
        public_keys=("/etc/llm-pipeline/release.pub",),
    ),
)

Manifest = dict[str, Any]


def options_with(**changes: Any) -> ServingManifestOptions:
    return ServingManifestOptions(**{"image": IMAGE, **changes})


@cache
def example(target: str) -> Manifest:
    return load_yaml(TARGETS / f"{target}.yaml", Target).model_dump()


def released(target: str, release: str = "llama-3.1-8b-instruct", **changes: Any) -> ServedRelease:
    return ServedRelease(
        name=release,
        release_id=f"{release}-0e9e39f2-5b1c77aa",
        model_id="meta-llama/Llama-3.1-8B-Instruct",
        target=Target.model_validate({**example(target), **changes}),
        repository=ArtifactRef(kind="model_repository", digest="0" * 64),
        engine=ArtifactRef(kind="engine", digest="1" * 64),
        checkpoint=ArtifactRef(kind="checkpoint", digest="2" * 64),
    )


SIXTEEN_GPUS = {"name": "h200_tp16", "accelerator_count": 16, "parallelism": {"tensor": 8, "pipeline": 2}}
VARIANTS = {
    "llama_8b_h100_hpa": (released("h100"), options_with()),
    "llama_70b_h200_tp2": (
        released("h200_tp2", "llama-3.3-70b-instruct"),
        options_with(
            store=S3,
            claims=(ClaimMount(claim="llm-pipeline-keys", path="/etc/llm-pipeline"),),
            service_account="llm-serving",
            memory_gib=192,
        ),
    ),
    "two_nodes_h200_tp16": (
        released("h200_tp4", "llama-3.3-70b-instruct", **SIXTEEN_GPUS),
        options_with(autoscaler="none", minimum_replicas=2),
    ),
    "l40s_engine": (released("l40s_engine"), options_with()),
    "two_nodes": (released("h200_tp4", **SIXTEEN_GPUS), options_with()),
}
WITH_GOLDEN_FILES = ("llama_8b_h100_hpa", "llama_70b_h200_tp2", "two_nodes_h200_tp16")


@cache
def manifests_of(variant: str) -> dict[str, Manifest]:
    return {manifest["kind"]: manifest for manifest in render_manifests(*VARIANTS[variant]).values()}


def validate(manifest: Manifest) -> None:
    """Raise if a manifest has a field that its kind has not, lacks one, or has a value of another type."""
    if manifest["kind"] not in SCHEMAS:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        return
    jsonschema.validate(manifest, SCHEMAS[manifest["kind"]])
    for template in pod_templates(manifest):
        labels = template["metadata"]["labels"]
        spec = {"selector": {"matchLabels": labels}, "template": template}
        around = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "template"}, "spec": spec}
        kubernetes_validate.validate(around, KUBERNETES, strict=True)


def pod_templates(manifest: Manifest) -> list[Manifest]:
    spec = manifest["spec"]
    if manifest["kind"] == "LeaderWorkerSet":
        return [spec["leaderWorkerTemplate"][name] for name in ("leaderTemplate", "workerTemplate")]
    return [spec["template"]] if "template" in spec else []


def workload_of(variant: str) -> Manifest:
    return next(manifest for manifest in manifests_of(variant).values() if pod_templates(manifest))


def containers(template: Manifest) -> list[Manifest]:
    return [*template["spec"]["initContainers"], *template["spec"]["containers"]]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_manifest_is_valid_with_no_unknown_field_and_reads_back_without_anchors(variant):
    for manifest in manifests_of(variant).values():
        validate(manifest)
        text = to_yaml(manifest)
        assert yaml.safe_load(text) == manifest
        assert "&id" not in text


@pytest.mark.parametrize("variant", WITH_GOLDEN_FILES)
def test_each_variant_is_its_golden_files(variant):
    rendered = {name: to_yaml(manifest) for name, manifest in render_manifests(*VARIANTS[variant]).items()}
    directory = GOLDEN / variant
    if os.environ.get("UPDATE_GOLDEN"):
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in rendered.items():
            (directory / name).write_text(text)
    assert rendered == {path.name: path.read_text() for path in directory.iterdir()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_container_meets_the_restricted_pod_security_standard(variant):
    for template in pod_templates(workload_of(variant)):
        assert template["spec"]["securityContext"]["runAsNonRoot"]
        assert template["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not template["spec"]["automountServiceAccountToken"]
        for container in containers(template):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.parametrize("variant", VARIANTS)
def test_service_monitor_budget_and_workload_select_the_same_pods(variant):
    manifests, workload = manifests_of(variant), workload_of(variant)
    labels = pod_templates(workload)[0]["metadata"]["labels"]
    answering = manifests["Service"]["spec"]["selector"]
    leaders = {"leaderworkerset.sigs.k8s.io/worker-index": "0"} if workload["kind"] == "LeaderWorkerSet" else {}
    assert answering == {name: value for name, value in labels.items() if name in answering} | leaders
    assert manifests["PodMonitor"]["spec"]["selector"]["matchLabels"] == answering
    budget = manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]
    assert budget == {name: value for name, value in answering.items() if name not in leaders}


def test_the_metric_is_one_that_every_served_model_has():
    code = (HERE.parents[1] / "llm_pipeline/serving/models/served_model.py").read_text()
    (metric,) = manifests_of("llama_8b_h100_hpa")["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert f'_metrics("{metric["pods"]["metric"]["name"]}"' in code


def test_pods_know_who_signs_and_no_key_that_signs():
    (setup,) = pod_templates(workload_of("llama_70b_h200_tp2"))[0]["spec"]["initContainers"]
    store = TypeAdapter(Store).validate_json(setup["command"][setup["command"].index("--store") + 1])
    assert store.signing == Signing(public_keys=("/etc/llm-pipeline/release.pub",))
    assert store.cache in {mount["mountPath"] for mount in setup["volumeMounts"]}


def test_a_long_name_stays_a_dns_label_of_its_own():
    names = {released("h100", f"{'a-very-long-name-' * 3}{end}").workload for end in "xy"}
    assert len(names) == 2
    assert all(len(name) <= 40 for name in names)


@pytest.mark.parametrize(
    ("release", "changes", "reason"),
    [
        (released("h100"), {"image": None}, "no image holds this package"),
        (released("cpu"), {"image": None, "setup_image": IMAGE}, "no image to serve with"),
        (released("h100"), {"claims": ()}, "pods do not reach the store"),
        (released("h100", accelerator="GB200-SXM"), {}, "label of nodes with GB200-SXM is not known"),
    ],
)
def test_what_pods_would_lack_is_refused(release, changes, reason):
    with pytest.raises(ConfigError, match=reason):
        render_manifests(release, options_with(**changes))


def test_a_cpu_target_asks_for_no_gpu():
    spec = render_manifests(released("cpu"), options_with())["deployment.yaml"]["spec"]["template"]["spec"]
    assert "nodeSelector" not in spec
    assert "tolerations" not in spec
    assert spec["containers"][0]["resources"] == {}


def test_what_a_cluster_calls_its_gpus_and_how_many_servers_it_may_start_are_its_operators():
    options = options_with(node_selector={"nvidia.com/gpu.product": "NVIDIA-H100-MIG"}, maximum_replicas=7)
    manifests = render_manifests(released("h100"), options, endpoint_seconds=25)
    spec = manifests["deployment.yaml"]["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-MIG"}
    assert spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"] == 25
    assert manifests["horizontalpodautoscaler.yaml"]["spec"]["maxReplicas"] == 7
