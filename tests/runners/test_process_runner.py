"""What only the process runner does; what every runner does is in `test_runner_contract.py`."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from llm_pipeline.adapters.local.adapter import Interpreter
from llm_pipeline.adapters.local.runner import ProcessRunner
from llm_pipeline.base import detached
from llm_pipeline.base.errors import ConfigError, StageCrashed
from llm_pipeline.config.files import how_to_make_an_interpreter
from llm_pipeline.runners.runner import Placement


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ("/usr/bin/python3: No module named llm_pipeline", "python3: No module named llm_pipeline"),
        ("Traceback (most recent call last):\\nModuleNotFoundError: No module named 'pydantic'", "'pydantic'"),
        ("Unknown option: -P\\nusage: python3.10 [option]", "Unknown option: -P (it is too old)"),
    ],
)
def test_an_interpreter_that_cannot_start_this_package_says_so(process_place, says, told) -> None:
    runner = process_place.scripted(f'printf "{says}\\n" >&2; exit 1')
    job = runner.submit(process_place.request(), Placement(environment="control"))
    process_place.ended(runner, job)
    with pytest.raises(ConfigError) as caught:
        runner.outcome(job)
    assert caught.value.message.endswith(told)
    assert caught.value.hint == how_to_make_an_interpreter()


def test_a_stage_whose_directory_is_gone_is_lost_and_can_be_tried_again(process_place) -> None:
    runner = ProcessRunner(process_place.deployment)
    job = runner.submit(process_place.request(sleep=60), Placement(environment="control"))
    runner.cancel(job)
    shutil.rmtree(job.directory)
    with pytest.raises(StageCrashed, match="without a result"):
        runner.outcome(job)


def test_a_stage_imports_nothing_from_where_it_was_started(process_place, tmp_path, monkeypatch) -> None:
    (tmp_path / "elsewhere" / "pydantic").mkdir(parents=True)  # as `triton/` beside somebody's environments
    (tmp_path / "elsewhere" / "pydantic" / "__init__.py").write_text("raise SystemExit('imported by its directory')")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert "package" in ProcessRunner.probe(Interpreter(python=sys.executable))


def test_output_after_the_last_whole_line_waits_for_its_end(process_place) -> None:
    runner = ProcessRunner(process_place.deployment)
    job = runner.submit(process_place.request(seconds=60), Placement(environment="control"))
    runner.cancel(job)
    job.log.write_text("whole\npar")
    assert runner.read_log(job, 0) == (["whole"], 6)
    job.log.write_text("whole\npartial\n")
    assert runner.read_log(job, 6) == (["partial"], 14)


def test_a_stage_that_computes_yields_to_servers_in_sessions_of_their_own(process_place) -> None:
    runner = ProcessRunner(process_place.deployment)
    job = runner.submit(process_place.request(seconds=60), Placement(environment="model"))
    try:
        process = detached.load(job.record)
        assert process is not None
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 10
        session = Path(f"/proc/{process.pid}/autogroup")
        if session.exists():  # the kernel shares a CPU between sessions first
            assert session.read_text().split()[1:] == ["nice", "10"]
    finally:
        runner.cancel(job)
