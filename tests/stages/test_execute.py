"""Stage execution, on a stage made for the test: nothing below is specific to any real stage."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from resolved_release import request_below

from llm_pipeline.base.errors import ConfigError, ExitCode, Transient
from llm_pipeline.base.verdict import Evidence, Verdict, judge
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.release import execute as execution
from llm_pipeline.release.contract import (
    Produced,
    Stage,
    StageContext,
    StageFailure,
    StageOutput,
    StageRequest,
    StageResult,
)
from llm_pipeline.store import open_store


class CountConfig(ConfigModel):
    text: str
    address: str = ""
    failure: str = ""


class Counter:
    """A stage that counts how often it really worked."""

    def __init__(self) -> None:
        self.runs = 0
        self.slow = threading.Event()
        self.slow.set()

    def run(self, context: StageContext[CountConfig]) -> StageOutput:
        self.runs += 1
        self.slow.wait(20)
        if context.config.failure == "transient":
            raise Transient("the network went away")
        if context.config.failure == "full":
            raise OSError(28, "No space left on device")
        if context.config.failure == "exit":
            sys.exit(1)
        if context.config.failure == "fault":
            raise ZeroDivisionError("a fault")
        output = context.workdir / "out"
        output.mkdir(exist_ok=True)
        (output / "text").write_text(context.config.text)
        return StageOutput(artifacts={"text": Produced("text", output)}, metrics={"runs": self.runs})


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    counter = Counter()
    stage = Stage(
        name="count", version=1, config=CountConfig, run=counter.run, tools=("pydantic",), places=frozenset({"address"})
    )
    monkeypatch.setattr(execution, "load_stage", lambda _name: stage)
    return counter


@pytest.fixture
def request_for(tmp_path: Path):
    def make(release: str = "r1", **config: str) -> StageRequest:
        return request_below(tmp_path, "count", {"text": "hello", **config}, release_id=release)

    return make


def succeed(request: StageRequest) -> StageResult:
    outcome = execution.execute(request)
    assert isinstance(outcome, StageResult), outcome
    return outcome


def fail(request: StageRequest) -> StageFailure:
    outcome = execution.execute(request)
    assert isinstance(outcome, StageFailure), outcome
    return outcome


def test_the_same_request_is_computed_once(counter: Counter, request_for) -> None:
    first, second = succeed(request_for()), succeed(request_for("r2"))
    assert counter.runs == 1
    assert (first.reused, second.reused) == (False, True)
    assert second.artifacts == first.artifacts
    assert second.release_id == "r2"


def test_what_a_measurement_could_not_decide_is_measured_again(
    counter: Counter, request_for, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reused(verdict: Verdict, *, measures: bool) -> bool:
        def run(context: StageContext[CountConfig]) -> StageOutput:
            fact = Evidence(name="a fact", verdict=verdict, measured=1.0, samples=9)
            return dataclasses.replace(counter.run(context), judgement=judge("a measurement", [fact]))

        stage = dataclasses.replace(execution.load_stage("count"), run=run, measures=measures)
        request = request_for(text=f"{verdict} {measures}")
        with monkeypatch.context() as patch:
            patch.setattr(execution, "load_stage", lambda _name: stage)
            return [succeed(request), succeed(request)][1].reused

    assert {verdict: reused(verdict, measures=True) for verdict in Verdict} == {
        Verdict.GO: True, Verdict.NO_GO: True, Verdict.INCONCLUSIVE: False, Verdict.ANOMALOUS: False,
    }  # fmt: skip
    assert all(reused(verdict, measures=False) for verdict in Verdict)


def test_a_place_is_not_part_of_the_key_and_other_config_is(counter: Counter, request_for) -> None:
    base = succeed(request_for())
    assert succeed(request_for(address="elsewhere")).key == base.key
    assert succeed(request_for(text="other")).key != base.key


def test_a_damaged_artifact_is_computed_again(counter: Counter, request_for, tmp_path: Path) -> None:
    ref = succeed(request_for()).artifacts["text"]
    (tmp_path / "store" / "artifacts" / "text" / ref.digest / "text").write_text("hellO")
    again = succeed(request_for())
    assert not again.reused
    assert open_store(request_for().store).verify(ref) == []


def test_a_failed_stage_leaves_no_record_and_is_noted_in_the_release_until_it_succeeds(
    counter: Counter, request_for
) -> None:
    assert fail(request_for(failure="transient")).error.family == "transient"
    store = open_store(request_for().store)
    (record,) = store.list_documents("stages")
    assert execution.read_stage_record(store, Path(record).stem) is None
    document = store.read_document("releases/r1/failures/count.json")
    assert document is not None
    assert document.value["error"]["message"] == "the network went away"
    succeed(request_for())
    assert store.read_document("releases/r1/failures/count.json") is None


@pytest.mark.parametrize(
    ("failure", "family", "words"),
    [
        ("fault", "terminal", "ZeroDivisionError: a fault"),
        ("exit", "terminal", "SystemExit: 1"),  # of a library, and no verdict
        ("full", "transient", "free disk space"),
    ],
)
def test_what_goes_wrong_in_a_stage_is_no_verdict_and_is_named(
    counter: Counter, request_for, failure: str, family: str, words: str
) -> None:
    error = fail(request_for(failure=failure)).error
    assert (error.family, error.exit_code) == (family, ExitCode.INFRASTRUCTURE)
    assert words in f"{error.message} -> {error.hint}"


def test_an_unknown_config_key_is_bad_input(counter: Counter, request_for) -> None:
    assert fail(request_for(tetx="typo")).error.type == ConfigError.__name__
    assert counter.runs == 0


def test_two_at_once_share_one_computation(counter: Counter, request_for) -> None:
    counter.slow.clear()
    results: list[StageResult] = []
    threads = [threading.Thread(target=lambda: results.append(succeed(request_for()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    counter.slow.set()
    for thread in threads:
        thread.join(30)
    assert counter.runs == 1
    assert sorted(result.reused for result in results) == [False, True, True]


def test_a_stage_passes_an_input_on_without_a_copy_and_nothing_else(
    counter: Counter, request_for, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = succeed(request_for()).artifacts["text"]
    passing = dataclasses.replace(
        execution.load_stage("count"), name="pass", run=lambda _context: StageOutput(artifacts={"same": made})
    )
    monkeypatch.setattr(execution, "load_stage", lambda _name: passing)
    given = request_for().model_copy(update={"inputs": {"text": made}})
    assert succeed(given).artifacts == {"same": made}
    assert succeed(given).reused
    assert [stored.ref for stored in open_store(given.store).artifacts()] == [made]
    error = fail(request_for()).error
    assert error.message == f"stage count passes on {made}, which is none of its inputs"


SLOW = ("aiohttp", "httpx", "huggingface_hub", "numpy", "torch")
"""Each takes a tenth of a second of processor time, or more."""

_PROGRAM = """
import sys
from llm_pipeline.release.flow import release_flow
from llm_pipeline.release.execute import main
from llm_pipeline.release.execute import load_stage

for step in release_flow():
    if step.is_stage and step.name != "resolve":  # the plan computes a lot with numpy
        load_stage(step.name)
        print(step.name, *(name for name in sys.argv[1:] if name in sys.modules))
"""


def test_a_stage_loads_no_slow_library() -> None:
    found = _output(_PROGRAM, *SLOW).splitlines()
    assert {"load_test", "canary"} <= {line.partition(" ")[0] for line in found}
    assert [line for line in found if " " in line] == []


def test_a_canary_loads_nothing_that_reads_configuration_files() -> None:
    assert _output("import sys, llm_pipeline.stages.canary; print('yaml' in sys.modules)").split() == ["False"]


def _output(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
