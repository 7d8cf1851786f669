from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from llm_pipeline_airflow.discovery import check_release_configs, release_dags

from llm_pipeline.errors import ConfigError

DAGS = Path(__file__).resolve().parents[2] / "dags"
HEAVY = {
    "accelerate", "boto3", "botocore", "datasets", "docker", "fastapi", "huggingface_hub", "kubernetes", "lm_eval",
    "matplotlib", "model_signing", "modelopt", "nncf", "numpy", "openvino", "optimum", "scipy", "torch", "transformers",
    "tritonclient",
}  # fmt: skip
PARSE = """
import json, sys, time
import airflow.sdk
before = set(sys.modules)
started = time.process_time()
import runpy
runpy.run_path(sys.argv[1])
cold = time.process_time() - started
started = time.process_time()
runpy.run_path(sys.argv[1])
warm = time.process_time() - started
print(json.dumps({"cold": cold, "warm": warm, "modules": sorted({m.partition(".")[0] for m in sys.modules})}))
"""


@pytest.fixture
def broken(project) -> Path:
    path = project.config.with_name("broken.yaml")
    path.write_text("model: { id: demo/tiny }\nrecipe: [small]\n")
    return path


def parse(releases: Path) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", PARSE, str(DAGS / "releases.py")],
        env={**os.environ, "LLM_PIPELINE_RELEASES": str(releases)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def test_parsing_is_quick_and_imports_nothing_heavy(project):
    parsed = parse(project.config.parent)
    assert not HEAVY.intersection(parsed["modules"])
    assert parsed["cold"] < 0.9  # three times the aim, for a loaded machine
    assert parsed["warm"] < 0.15


def test_a_broken_config_leaves_the_other_dags_alone(project, broken):
    assert set(release_dags(project.config.parent)) == {"release__tiny"}


def test_a_broken_config_is_named_with_its_line_and_mistake(broken):
    with pytest.raises(ConfigError) as refused:
        check_release_configs(broken.parent)
    assert "broken.yaml:2: unknown key recipe: did you mean recipes?" in str(refused.value)


@pytest.mark.parametrize(
    ("added", "mistake"),
    [("schedule: every day\n", "schedule 'every day'"), ("watch: {}\n", "needs a branch or a tag")],
)
def test_a_schedule_that_cannot_be_is_named(project, added, mistake):
    text = project.config.read_text().replace("id: demo/tiny", f"id: demo/tiny, revision: {'a' * 40}")
    project.config.write_text(text + added)
    with pytest.raises(ConfigError, match=mistake):
        check_release_configs(project.config.parent)
    assert release_dags(project.config.parent) == {}


def test_correct_configs_raise_nothing(project):
    check_release_configs(project.config.parent)


def test_airflow_shows_the_mistake_as_an_import_error_of_a_file_without_dags(project, broken, monkeypatch):
    from airflow.dag_processing.dagbag import DagBag

    monkeypatch.setenv("LLM_PIPELINE_RELEASES", str(broken.parent))
    bag = DagBag(dag_folder=str(DAGS))
    assert set(bag.dags) == {"release__tiny", "retention__here", "guard__here", "rollback__here"}
    ((name, error),) = bag.import_errors.items()
    assert name.endswith("release_config_errors.py")
    assert "broken.yaml:2" in error


def test_a_worker_makes_only_the_dag_it_runs(project, monkeypatch):
    other = project.config.with_name("other.yaml")
    other.write_text(project.config.read_text())
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "release__other")
    assert set(release_dags(project.config.parent)) == {"release__other"}


def test_a_directory_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="no such directory"):
        check_release_configs(tmp_path / "nowhere")
