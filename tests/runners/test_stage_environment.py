"""Every secret of a deployment is planted here; each stage gets those that it needs, and no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from resolved_release import deployment_below

from llm_pipeline.adapters.kubernetes.adapter import KubernetesEnvironment
from llm_pipeline.adapters.kubernetes.job import job_manifest
from llm_pipeline.config.deployment import Deployment, HubAccess
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.config.store import Signing, StoreModel, store_settings
from llm_pipeline.release.contract import StageRequest
from llm_pipeline.release.flow import stage_names
from llm_pipeline.runners.runner import Job
from llm_pipeline.runners.stage_environment import command_environment, stage_environment, withheld_secrets

CONFIGS = Path(__file__).parents[2] / "configs"
SECRETS = (
    "HUB_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "SLACK_WEBHOOK", "SIGNING_PASSWORD", "ID_TOKEN",
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "PROMETHEUS_TOKEN", "GATEWAY_KEY", "IMAGE_KEY",
    "NVIDIA_API_KEY", "NGC_API_KEY", "KUBECONFIG", "DOCKER_AUTH_CONFIG", "AIRFLOW_CONN_DB", "AIRFLOW__CORE__FERNET_KEY",
    "DATABASE_URL", "GITHUB_TOKEN", "OPENAI_API_KEY", "PYTHON_KEYRING_PASSWORD", "OTHER",
)  # fmt: skip
SIGNING = Signing(private_key="/keys/a.pem", password_variable="SIGNING_PASSWORD", public_keys=("/keys/a.pub",))
KEYED = {"url": "http://host:1", "api_key_variable": "GATEWAY_KEY"}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "resolve": {"config_path": str(CONFIGS / "releases" / "demo.yaml")},
    "eval_data": {"hub": HubAccess(token_variable="HUB_TOKEN").model_dump(mode="json")},
    "download": {"hub": HubAccess(token_variable="HUB_TOKEN").model_dump(mode="json")},
    "staging": {"place": {"kind": "acme", "variables": ["IMAGE_KEY"]}},
    "load_test": {"endpoint": KEYED},
    "served_accuracy": {"endpoint": KEYED},
    "canary": {"place": {"metrics": {"kind": "prometheus", "token_variable": "PROMETHEUS_TOKEN"}}},
    "rollback": {"place": {"router": {"kind": "gateway_api"}}},
}
NEEDED = {
    "resolve": {"HF_TOKEN"},  # the one that configs/deployments/local.yaml names
    "eval_data": {"HUB_TOKEN"},
    "download": {"HUB_TOKEN"},
    "staging": {"IMAGE_KEY"},
    "load_test": {"GATEWAY_KEY"},
    "served_accuracy": {"GATEWAY_KEY"},
    "canary": {"PROMETHEUS_TOKEN"},
    "rollback": {"KUBECONFIG"},
}
PUBLISHING = set(stage_names()) - {"choose", "settle", "staging", "staging_down", "rollback", "report"}
AWS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, f"canary of {name}")


def deployment_of(store: StoreModel, **given: Any) -> Deployment:
    told = {"hub": HubAccess(token_variable="HUB_TOKEN"), "notifications": {"chat": {"variable": "SLACK_WEBHOOK"}}}
    return deployment_below(Path("/"), store=store, environments={"control": sys.executable}, **told, **given)


def request_of(stage: str, store: StoreModel) -> StageRequest:
    return StageRequest(
        release_id="r", stage=stage, config=CONFIGURATIONS.get(stage, {}), store=store, work_root="/work"
    )


def arrived(environment: dict[str, str]) -> set[str]:
    """The secrets that a real child has."""
    program = "import json, os; print(json.dumps(dict(os.environ)))"
    done = subprocess.run([sys.executable, "-S", "-c", program], env=environment, capture_output=True, check=True)
    return {name for name in json.loads(done.stdout) if name in SECRETS}


@pytest.mark.parametrize("stage", stage_names())
def test_a_stage_gets_the_secrets_that_it_needs_and_no_other(stage: str):
    store = store_settings(uri="file:///store", signing=SIGNING)
    signs = {"SIGNING_PASSWORD"} if stage in PUBLISHING else set()
    environment = stage_environment(request_of(stage, store), deployment_of(store))
    assert arrived(environment) == NEEDED.get(stage, set()) | signs


def test_only_a_store_in_s3_needs_its_credentials():
    store = store_settings(uri="s3://bucket/prefix", signing=Signing(public_keys=("/keys/a.pub",)))
    for stage in stage_names():
        environment = stage_environment(request_of(stage, store), deployment_of(store))
        assert {name for name in environment if name in SECRETS} == NEEDED.get(stage, set()) | AWS, stage


def test_a_model_in_s3_needs_credentials_though_the_store_does_not(tmp_path: Path):
    store = store_settings(uri="file:///store")
    request = request_of("download", store).model_copy(update={"config": {"source": "s3://bucket/model"}})
    assert "AWS_SECRET_ACCESS_KEY" in stage_environment(request, deployment_of(store))


def test_what_processes_need_is_handed_on(monkeypatch: pytest.MonkeyPatch):
    wanted = (
        "PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "HTTPS_PROXY",
        "no_proxy", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
        "NCCL_DEBUG", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE",
        "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "PYTORCH_CUDA_ALLOC_CONF", "XDG_CACHE_HOME",
    )  # fmt: skip
    for name in wanted:
        monkeypatch.setenv(name, os.environ.get(name, "x"))
    store = store_settings(uri="file:///store")
    assert set(wanted) <= stage_environment(request_of("quantize", store), deployment_of(store)).keys()


def test_a_stage_sees_the_gpus_that_its_request_names(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    store = store_settings(uri="file:///store")
    request = request_of("quantize", store)
    assert stage_environment(request, deployment_of(store))["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    request = request.model_copy(update={"gpu_indices": (1, 3)})
    assert stage_environment(request, deployment_of(store))["CUDA_VISIBLE_DEVICES"] == "1,3"


def test_variables_of_the_deployment_are_handed_on():
    store = store_settings(uri="file:///store")
    deployment = deployment_of(store, variables=("OTHER",))
    assert arrived(stage_environment(request_of("quantize", store), deployment)) == {"OTHER"}


def test_variables_in_a_deployments_paths_reach_whoever_reads_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = (CONFIGS / "deployments" / "local.yaml").read_text()
    (path := tmp_path / "local.yaml").write_text(text.replace("store: ../..", "store: ${SCRATCH_HERE}"))
    monkeypatch.setenv("SCRATCH_HERE", "/scratch")
    deployment = load_yaml(path, Deployment)
    assert deployment.store.uri == "file:///scratch/.pipeline/store"
    assert "SCRATCH_HERE" in stage_environment(request_of("choose", deployment.store), deployment)
    assert "SCRATCH_HERE" in command_environment(deployment)


def test_a_command_gets_neither_the_hubs_token_nor_what_signs_or_tells_people():
    store = store_settings(uri="s3://bucket", signing=SIGNING)
    assert arrived(command_environment(deployment_of(store))) == AWS


def test_a_pod_finds_secrets_empty_that_its_stage_does_not_need():
    store = store_settings(uri="s3://bucket", signing=SIGNING)
    deployment, request = deployment_of(store), request_of("staging", store)
    environment = KubernetesEnvironment(runner="kubernetes", namespace="llm", secrets=("everything",))
    job = Job(runner="kubernetes", environment="model", name="j", directory=Path("/j"), request_digest="d")
    withheld = withheld_secrets(request, deployment)
    manifest = job_manifest(environment, "image", request, job, withheld)
    empty = {one["name"] for one in manifest["spec"]["template"]["spec"]["containers"][0]["env"] if not one["value"]}
    assert empty == withheld == {"HUB_TOKEN", "SIGNING_PASSWORD", "SLACK_WEBHOOK"}
