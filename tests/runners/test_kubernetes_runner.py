"""The Kubernetes runner against the double of an API server, with everything that goes wrong in a cluster."""

from __future__ import annotations

import json
import os
import re
import time
from datetime import timedelta

import pytest
from waiting import until

from llm_pipeline.adapters.kubernetes import api as kubernetes_api
from llm_pipeline.adapters.kubernetes import runner as kubernetes
from llm_pipeline.adapters.kubernetes.job import job_manifest
from llm_pipeline.base.errors import ConfigError, RemoteStageError, RemoteStageTransient, StageCrashed, Transient
from llm_pipeline.base.labels import label_value
from llm_pipeline.config.environment import ClaimMount, Toleration
from llm_pipeline.config.store import store_settings
from llm_pipeline.runners.runner import Job, Placement, Runners

HERE = Placement(environment="control")
_TALKER = "i=0; while [ $i -lt 20 ]; do i=$((i+1)); echo line $i; sleep 0.01; done; sleep 60"
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(kubernetes_api, "_WAITS_SECONDS", (0.01, 0.01, 0.01))
    monkeypatch.setattr(kubernetes_api, "_POLL_SECONDS", 0.02)


@pytest.fixture
def place(kubernetes_place):
    return kubernetes_place


@pytest.mark.parametrize("status", [429, 500, 503, 0], ids=["throttled", "failing", "away", "answer lost"])
def test_a_server_in_trouble_gets_no_second_job(place, cluster, status):
    runner = place.scripted("sleep 60")
    cluster.answer(status, times=2, to="POST jobs")
    cluster.answer(status, times=2, to="GET")
    job = runner.submit(place.request(), HERE)
    assert runner.is_active(job)
    assert cluster.names() == [job.name]
    assert place.runner().submit(place.request(), HERE) == job


def test_log_lines_come_once_through_lost_answers_and_rotation(place, cluster):
    runner, lines, offset = place.scripted(_TALKER), [], 0
    job = runner.submit(place.request(), HERE)
    rotated = False
    while len(lines) < 20:
        cluster.answer(0, times=1, to="GET log")
        more, offset = runner.read_log(job, offset)
        lines += more
        if len(lines) > 5 and not rotated:
            cluster.rotate(job.name, keep=2)
            rotated = True
        time.sleep(0.01)
    assert rotated
    assert lines == [f"line {number}" for number in range(1, 21)]
    assert place.runner().read_log(job, offset) == ([], offset)


@pytest.mark.parametrize(
    ("happens", "says", "advice"),
    [
        (lambda cluster, name: cluster.kill(name, "OOMKilled"), "OOMKilled .exit code 137.", "raise memory_gib"),
        (lambda cluster, name: cluster.kill(name, "Evicted"), "Evicted.*low on resource: memory", "memory_gib"),
        (lambda cluster, name: cluster.lose_node(name), "its pod is gone: its node was lost", "finished work"),
        (
            lambda cluster, name: cluster.run_out_of_time(name),
            "DeadlineExceeded: Job was active",
            "raise longest_stage_hours",
        ),
        (lambda cluster, name: cluster.delete_behind(name), "its Job is gone", "finished work"),
    ],
    ids=["out of memory", "evicted", "node lost", "out of time", "deleted"],
)
def test_a_pod_that_is_lost_is_a_transient_crash_that_says_how(place, cluster, happens, says, advice):
    runner = place.scripted("echo the last words; sleep 60")
    job = runner.submit(place.request(), HERE)
    until(lambda: runner.read_log(job, 0)[0])
    happens(cluster, job.name)
    place.ended(runner, job)
    with pytest.raises(StageCrashed, match=says) as caught:
        place.runner().outcome(job)
    assert advice in caught.value.hint
    assert "the last words" in caught.value.message or "gone with its pod" in caught.value.message
    assert runner.is_active(runner.submit(place.request(), HERE))


def test_a_pod_on_a_node_that_does_not_answer_holds_nobody_up_and_gets_no_second(place, cluster, monkeypatch):
    runner = place.scripted("sleep 60")
    job = runner.submit(place.request(), HERE)
    cluster.isolate_node(job.name)
    assert not runner.is_active(job)
    with pytest.raises(StageCrashed, match="its node node-1 does not answer"):
        runner.outcome(job)
    monkeypatch.setattr(kubernetes, "_GONE_AFTER_SECONDS", 0.1)
    with pytest.raises(Transient, match="is their node lost"):
        runner.submit(place.request(), HERE)
    assert cluster.names() == [job.name]


@pytest.mark.parametrize(
    ("script", "settings", "error", "says"),
    [
        ("exit 0", {}, StageCrashed, r"Completed .exit code 0."),  # no outcome in the store
        ("", {"image": "No Image"}, RemoteStageError, "InvalidImageName"),
    ],
)
def test_a_pod_without_an_outcome_says_how_it_ended(place, script, settings, error, says):
    runner = place.scripted(script, **settings)
    job = runner.submit(place.request(), HERE)
    place.ended(runner, job)
    with pytest.raises(error, match=says):
        runner.outcome(job)


def test_an_image_that_cannot_be_pulled_is_a_terminal_error_for_every_worker(place, cluster):
    cluster.missing_images.add(image := "registry.test/no/such:1")
    job = place.scripted("", image=image).submit(place.request(), HERE)
    assert place.runner().is_active(job), "a registry may come back"
    place.ended(place.scripted("", image=image, start_timeout_minutes=1e-6), job)
    assert cluster.names() == []
    with pytest.raises(RemoteStageError, match=r"ImagePullBackOff: .*no/such:1") as caught:
        place.runner().outcome(job)
    assert caught.value.exit_code == ConfigError.exit_code


@pytest.mark.parametrize(("trouble", "says"), [("full", "3 Insufficient gpu"), ("quota_used_up", "exceeded quota")])
def test_a_pod_without_a_node_waits_for_its_time_and_is_then_tried_again(place, cluster, trouble, says):
    setattr(cluster, trouble, True)
    runner = place.scripted("")
    job = runner.submit(place.request(), HERE)
    assert runner.is_active(job)
    runner.cancel(job)
    cluster.age = timedelta(minutes=31)
    job = runner.submit(place.request(), HERE)
    place.ended(runner, job)
    with pytest.raises(RemoteStageTransient, match=says):
        runner.outcome(job)
    assert cluster.names() == []


def test_an_outcome_of_an_earlier_job_is_never_taken_for_a_later_one(place, cluster):
    runner = Runners(place.deployment)
    first = runner.submit(place.request(), HERE)
    place.ended(runner, first)
    assert runner.outcome(first).stage == "choose"
    cluster.delete_behind(first.name)  # its time to live is over
    again = place.scripted("exit 1").submit(place.request(), HERE)
    place.ended(runner, again)
    assert again.name != first.name
    with pytest.raises(StageCrashed):
        runner.outcome(again)


def test_pods_that_share_no_file_with_the_worker_answer_through_a_store_in_s3(place, cluster, s3):
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_EC2_METADATA_DISABLED")
    cluster.secrets["bucket"] = {name: os.environ[name] for name in names}
    environment = place.deployment.environments["control"]
    pods = environment.model_copy(update={"claims": (), "secrets": ("bucket",)})
    store = store_settings(uri=f"s3://{s3.bucket()}/store", endpoint=s3.endpoint)
    place.deployment = place.deployment.model_copy(update={"store": store, "environments": {"control": pods}})
    runner = place.runner()
    job = runner.submit(place.request(lines=3), HERE)
    place.ended(runner, job)
    assert runner.outcome(job).metrics == {"lines": 3}


def test_secrets_and_the_image_reach_the_process_as_variables(place, cluster):
    cluster.secrets["hub"] = {"PROXY_TOKEN": "a secret"}
    runner = place.scripted('echo "${PROXY_TOKEN:+there} $LLM_PIPELINE_CONTAINER"; exit 1', secrets=("hub",))
    job = runner.submit(place.request(), HERE)
    place.ended(runner, job)
    assert runner.read_log(job, 0)[0] == ["there registry.test/llm/model:1"]
    assert "a secret" not in json.dumps(cluster.job(job.name))


def test_the_pod_asks_for_what_the_environment_says_and_for_no_privilege(place):
    place.scripted("")
    environment = place.deployment.environments["control"].model_copy(
        update={
            "gpus": 2,
            "cpu": 1.5,
            "memory_gib": 64.0,
            "node_selector": {"gpu": "h200"},
            "tolerations": (Toleration(key="nvidia.com/gpu", effect="NoSchedule"),),
            "service_account": "builder",
            "claims": (),
        }
    )
    request = place.request().model_copy(update={"store": store_settings(uri="s3://bucket/x"), "work_root": "/work"})
    job = Job(runner="kubernetes", environment="control", name="llm-1", directory="/nowhere", request_digest="d")
    spec = job_manifest(environment, "i@sha256:0", request, job)["spec"]
    pod = spec["template"]["spec"]
    container = pod["containers"][0]
    assert (spec["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    assert spec["activeDeadlineSeconds"] == (30 + 24 * 60 + 4) * 60  # the wait for a node, the stage's limit, grace
    assert container["resources"] == {
        "limits": {"nvidia.com/gpu": "2", "memory": "65536Mi"},
        "requests": {"nvidia.com/gpu": "2", "memory": "65536Mi", "cpu": "1500m"},
    }
    assert pod["nodeSelector"] == {"gpu": "h200"}
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount["readOnly"]}
    assert writable == {"/tmp", "/dev/shm", "/work"}  # noqa: S108
    assert {"medium": "Memory", "sizeLimit": "1024Mi"} in [volume.get("emptyDir") for volume in pod["volumes"]]


def test_a_store_that_pods_do_not_reach_is_refused_before_a_job_is_made(place, cluster, tmp_path):
    read_only = (ClaimMount(claim="shared", path=str(tmp_path)),)
    with pytest.raises(ConfigError, match="pods do not reach the store"):
        place.scripted("", claims=read_only).submit(place.request(), HERE)
    assert cluster.names() == []


def test_any_subject_makes_legal_names_and_labels_and_no_two_the_same(place, cluster):
    subjects = ["cpu:5", "cpu.5", "Ümläut", "x" * 80, "x" * 81, "-.-"]
    runner = place.scripted("sleep 60")
    for subject in subjects:
        runner.submit(place.request(subject), HERE)
    assert len(cluster.names()) == len(subjects)
    values = [label_value(subject) for subject in subjects]
    assert len(set(values)) == len(subjects)
    assert all(_LABEL_VALUE.fullmatch(value) for value in values)


def test_without_a_way_to_a_cluster_or_a_permission_the_error_says_what_is_missing(
    place, cluster, monkeypatch, tmp_path
):
    cluster.answer(403, times=1)
    with pytest.raises(ConfigError, match="create, get, list and delete Jobs"):
        place.scripted("").submit(place.request(), HERE)
    runner = place.scripted("")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="set KUBECONFIG"):
        runner.submit(place.request(), HERE)
