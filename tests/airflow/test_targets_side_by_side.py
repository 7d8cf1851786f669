"""`llm-pipeline run` takes targets on GPUs of their own side by side: stages that do no work, in this process."""

from __future__ import annotations

import re

import pytest

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.local_run import LocalRun

pytestmark = pytest.mark.usefixtures("in_process")


def on_gpus(project, **gpus: str) -> None:
    """Name the GPUs of each server of a place."""
    deployment = project.root / "configs/deployments/here.yaml"
    text = deployment.read_text()
    for place, indices in gpus.items():
        name = place.replace("_", "-")
        before = re.search(rf"{name}: .*?router", text)
        assert before is not None
        own = re.sub(r"(openai: \d+)", rf"\1, gpus: {indices}", before.group())
        text = text.replace(before.group(), own)
    deployment.write_text(text)


def test_a_target_does_not_wait_for_one_on_another_gpu(project) -> None:
    on_gpus(project, cpu_a="[0]", cpu_b="[1]")
    other = str(project.root / "other-has-started")
    project.script(**{"build/cpu-a": {"until": other}, "build/cpu-b": {"file": other}})  # in turn it would never end
    assert LocalRun(project.config, approve=lambda _: True).run() is Verdict.GO


def test_an_error_on_one_target_lets_the_other_go_on(project) -> None:
    on_gpus(project, cpu_a="[0]", cpu_b="[1]")
    project.script(**{"staging/cpu-a": {"verdict": "NO_GO"}})
    run = LocalRun(project.config, approve=lambda _: True)
    assert run.run() is Verdict.NO_GO
    assert run.flow is not None
    assert {subject for stage, subject in run.flow.results() if stage == "settle"} == {"cpu-b"}


@pytest.mark.parametrize(
    ("gpus", "apart"),
    [
        ({}, False),
        ({"cpu_a": "[0]"}, False),
        ({"cpu_a": "[0]", "cpu_b": "[0, 1]"}, False),
        ({"cpu_a": "[0, 1]", "cpu_b": "[2]"}, True),
    ],
)
def test_targets_stand_apart_only_where_each_server_names_gpus_of_its_own(project, gpus, apart) -> None:
    from llm_pipeline.release.tasks import release_tasks

    on_gpus(project, **gpus)
    run = LocalRun(project.config, approve=lambda _: True)
    lanes = {task.lane.id: task.lane for task in release_tasks(run._loaded.release, ("small", "large")) if task.lane}
    assert run._stand_apart(lanes["targets"]) is apart
    assert run._stand_apart(lanes["recipes_1"]) is False
