"""What only the process runner does; what every runner does is in `test_runner_contract.py`."""

import pytest

from llm_pipeline.errors import ConfigError
from llm_pipeline.runners.process import ProcessRunner, stage_environment
from llm_pipeline.runners.runner import Placement


def test_a_missing_interpreter_is_one_clear_error(process_place) -> None:
    with pytest.raises(ConfigError, match="make environments"):
        ProcessRunner(process_place.deployment).submit(process_place.request(), Placement(environment="nowhere"))


def test_output_after_the_last_whole_line_waits_for_its_end(process_place) -> None:
    runner = ProcessRunner(process_place.deployment)
    job = runner.submit(process_place.request(seconds=60), Placement(environment="control"))
    runner.cancel(job)
    job.log.write_text("whole\npar")
    assert runner.read_log(job, 0) == (["whole"], 6)
    job.log.write_text("whole\npartial\n")
    assert runner.read_log(job, 6) == (["partial"], 14)


def test_airflow_settings_and_connections_do_not_reach_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://user:secret@host/db")
    monkeypatch.setenv("AIRFLOW_CONN_HUB", "secret")
    monkeypatch.setenv("HF_TOKEN", "needed")
    environment = stage_environment()
    assert not [name for name in environment if name.startswith(("AIRFLOW__", "AIRFLOW_CONN_"))]
    assert environment["HF_TOKEN"] == "needed"


def test_a_deployment_without_a_webhook_secret_withholds_no_more_than_airflows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "needed")
    assert stage_environment(("AIRFLOW__", ""))["HF_TOKEN"] == "needed"
