from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from llm_pipeline_airflow.discovery import check_release_configs, dags_of

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.release import loading

DAGS = Path(__file__).resolve().parents[2] / "dags"
HEAVY = {
    "accelerate", "boto3", "botocore", "datasets", "fastapi", "huggingface_hub", "kubernetes", "lm_eval",
    "matplotlib", "model_signing", "modelopt", "nncf", "numpy", "openvino", "optimum", "scipy", "torch", "transformers",
    "tritonclient",
}  # fmt: skip
OF_HERE = {"guard__here", "retention__here", "rollback__here", "verify__here"}
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
modules = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps({"cold": cold, "warm": warm, "modules": modules}))
"""

ZONE = """
import runpy, sys
timetable = runpy.run_path(sys.argv[1])["guard__here"].timetable
print(type(timetable).__name__, timetable.timezone)
"""


@pytest.fixture
def broken(project) -> Path:
    path = project.config.with_name("broken.yaml")
    path.write_text("model: { id: demo/tiny }\nrecipe: [small]\n")
    return path


def in_a_new_process(program: str, releases: Path, **settings: str) -> str:
    """The last line that a program says, which is given the package's DAG file."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(DAGS / "releases.py")],
        env={**os.environ, "AIRFLOW__LLM_PIPELINE__RELEASES": str(releases), **settings},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()[-1]


def test_parsing_is_quick_and_imports_nothing_heavy(project):
    parsed = json.loads(in_a_new_process(PARSE, project.config.parent))
    assert not HEAVY.intersection(parsed["modules"])
    assert parsed["cold"] < 0.9  # three times the aim, for a loaded machine
    assert parsed["warm"] < 0.15


@pytest.mark.parametrize(
    ("key", "written", "kind"),
    [
        ("guard_schedule", "guard_schedule: every minute", "guard"),
        ("verification_schedule", "verification_schedule: every minute", "verify"),
        ("retention.schedule", "retention: { schedule: every minute }", "retention"),
    ],
)
def test_a_schedule_of_a_deployment_that_cannot_be_is_named_and_takes_no_other_dag_along(project, key, written, kind):
    deployment = project.config.parents[1] / "deployments" / "here.yaml"
    deployment.with_name("there.yaml").write_text(deployment.read_text())
    other = project.config.read_text().replace("deployment: here", "deployment: there")
    project.config.with_name("other.yaml").write_text(other)
    deployment.write_text(f"{deployment.read_text()}{written}\n")
    made = dags_of((project.config.parent,))
    assert (f"{kind}__there" in made, f"{kind}__here" in made, len(made)) == (True, False, 9)
    with pytest.raises(ConfigError, match=f"{key} 'every minute'"):
        check_release_configs((project.config.parent,))


def test_the_schedules_of_a_deployment_are_in_utc_whatever_airflows_zone_is(project):
    zone = {
        "AIRFLOW__CORE__DEFAULT_TIMEZONE": "Europe/Berlin", "AIRFLOW__SCHEDULER__CREATE_CRON_DATA_INTERVALS": "true"
    }  # fmt: skip
    assert in_a_new_process(ZONE, project.config.parent, **zone) == "CronTriggerTimetable UTC"


def test_airflow_shows_the_mistake_as_an_import_error_of_a_file_without_dags(project, broken, monkeypatch):
    from airflow.dag_processing.dagbag import DagBag

    monkeypatch.setenv("AIRFLOW__LLM_PIPELINE__RELEASES", str(broken.parent))
    bag = DagBag(dag_folder=str(DAGS))
    assert set(bag.dags) == {"release__tiny", *OF_HERE}
    ((name, error),) = bag.import_errors.items()
    assert name.endswith("release_config_errors.py")
    assert "broken.yaml:2: unknown key recipe: did you mean recipes?" in error


@pytest.mark.parametrize("dag_id", ["release__other", "guard__here"])
def test_a_worker_makes_only_the_dag_it_runs(project, monkeypatch, dag_id):
    project.config.with_name("other.yaml").write_text(project.config.read_text())
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", dag_id)
    assert set(dags_of((project.config.parent,))) == {dag_id}


@pytest.fixture
def odd(project, monkeypatch) -> Path:
    """A release config that makes the program fail as nobody expected."""
    path = project.config.with_name("odd.yaml")
    path.write_text(project.config.read_text())
    real = loading.load_yaml

    def load(found: Path, *arguments, **options):
        if found == path:
            raise OverflowError("cannot reach https://user:hunter2@hub.example")
        return real(found, *arguments, **options)

    monkeypatch.setattr(loading, "load_yaml", load)
    return path


def test_a_config_that_raises_anything_leaves_every_other_dag_alone(project, odd, caplog):
    assert set(dags_of((project.config.parent,))) == {"release__tiny", *OF_HERE}
    assert "Traceback" in caplog.text
    assert "hunter2" not in caplog.text
