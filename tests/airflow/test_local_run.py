"""`llm-pipeline run` starts what the flow's rules say: the real store and requests, stages that do no work."""

from __future__ import annotations

import logging
import shutil

import pytest
from flow_cases import CASES, RECIPES, TARGETS, Case, walk
from place_here import pointer, serve

from llm_pipeline.base.errors import ExitCode, IntegrityError, PipelineError
from llm_pipeline.base.logging import FAILURES
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.cli import main
from llm_pipeline.local_run import LocalRun
from llm_pipeline.release.claim import claim_name
from llm_pipeline.release.loading import load_release
from llm_pipeline.release.rules import run_fails
from llm_pipeline.release.step import Ending
from llm_pipeline.release.tasks import release_tasks
from llm_pipeline.store import open_store

QUICK = {"load_test refuses cpu-a", "canary cpu-a:5 refused", "error in build", "production declined"}


@pytest.fixture(scope="module")
def release(tmp_path_factory, make_project):
    return make_project(tmp_path_factory.mktemp("release"), approval=True)


@pytest.fixture
def run(release, in_process):
    """Runs the release anew; what was started, and how it ended."""

    def once(case: Case, *, fresh: bool = True) -> tuple[list[tuple[str, str]], Verdict | PipelineError]:
        release.script(**case.stages)
        if fresh:
            shutil.rmtree(release.root / "store", ignore_errors=True)
            shutil.rmtree(release.root / "work/jobs", ignore_errors=True)
        in_process.ran.clear()
        try:
            ended = LocalRun(release.config, approve=lambda _: "approve" not in case.declined).run()
        except PipelineError as error:
            ended = error
        return list(dict.fromkeys(in_process.ran)), ended

    return once


def cases():
    for name, case in CASES.items():
        marks = () if name in QUICK else pytest.mark.thorough
        if not any(plan.get("error") for stage, plan in case.stages.items() if stage == "resolve"):
            yield pytest.param(case, id=name, marks=marks)


@pytest.mark.parametrize("case", [*cases()])
def test_what_is_started_and_how_it_ends_are_what_the_rules_say(release, run, case):
    tasks = release_tasks(load_release(release.config).release, RECIPES)
    walked = walk(tasks, case)
    started, ended = run(case)
    assert started == walked.started
    failed = list(run_fails(tasks, walked.endings))
    nothing_to_choose = all(case.stages.get(f"quantize/{recipe}", {}).get("error") for recipe in RECIPES)
    if nothing_to_choose or any(
        plan.get("error") == "terminal" for stage, plan in case.stages.items() if counts(walked, stage)
    ):
        assert isinstance(ended, PipelineError)
    elif failed:
        assert ended is Verdict.NO_GO
    else:
        assert ended is Verdict.GO


def test_a_step_that_a_person_declines_is_followed_by_the_rollback_as_the_rules_say(make_project, tmp_path, in_process):
    release = make_project(tmp_path, approval=True)
    release.edit("policies/quick", "[5, 100]", "[5, 100], approve_before_percent: [100]")
    loaded = load_release(release.config)
    store = open_store(loaded.deployment.store)
    for target in TARGETS:  # what a release replaces is compared with, and asked about
        serve(store, loaded.release.model.id, target, pointer("r1"))
    in_process.ran.clear()
    asked = []

    def decline_steps(question: str) -> bool:
        asked.append(question)
        return not question.startswith("Move 100 %")

    assert LocalRun(release.config, approve=decline_steps).run() is Verdict.NO_GO
    tasks = release_tasks(loaded.release, RECIPES)
    walked = walk(tasks, Case(declined=("approve_step",)))
    assert list(dict.fromkeys(in_process.ran)) == walked.started
    assert ("rollback", "cpu-a") in walked.started
    assert ("canary", "cpu-a:100") not in walked.started
    assert len([question for question in asked if question.startswith("Move 100 % of the traffic of cpu-a")]) == 1


def counts(walked, script: str) -> bool:
    """Whether a stage's error decides what becomes of the release."""
    stage, _, subject = script.partition("/")
    return stage not in ("quantize", "accuracy", "staging_down", "report") and (stage, subject) in walked.started


def test_a_run_whose_claim_cannot_be_understood_still_takes_down_what_it_staged(release, run, in_process):
    def damage(request) -> None:
        if (request.stage, request.subject) == ("served_accuracy", "cpu-a"):
            (release.root / "store" / claim_name("demo/tiny")).write_text("{")

    in_process.before = damage
    try:
        started, ended = run(Case())
    finally:
        in_process.before = lambda _request: None
    assert isinstance(ended, IntegrityError)
    assert started[-2:] == [("staging_down", "cpu-a"), ("report", "")]


def test_a_killed_run_leaves_nothing_behind_and_the_next_one_takes_it_up(release, run, in_process):
    def kill(request) -> None:
        if (request.stage, request.subject) == ("canary", "cpu-a:100"):
            raise KeyboardInterrupt

    in_process.before = kill
    with pytest.raises(KeyboardInterrupt):
        run(Case())
    assert in_process.ran[-2:] == [("rollback", "cpu-a"), ("report", "")]
    in_process.before = lambda _request: None
    started, ended = run(Case(), fresh=False)
    tasks = release_tasks(load_release(release.config).release, RECIPES)
    assert (started, ended) == (walk(tasks, Case()).started, Verdict.GO)
    assert Ending.FAILED not in walk(tasks, Case()).endings._ended.values()


def test_people_are_told_what_a_dag_tells_them(run, told):
    told.messages.clear()
    assert run(CASES["load_test refuses cpu-a"])[1] is Verdict.NO_GO
    types = {message["title"].partition(" of ")[0]: message["type"] for message in told.messages}
    assert (types["Load test gate cpu-a"], types["Load test gate cpu-b"]) == ("warning", "info")
    assert len(told.titles) == len(set(told.titles))
    assert not [title for title in told.titles if "failed" in title]
    assert [title for title in told.titles if title.startswith("Approved")], "somebody approved"
    assert not [title for title in told.titles if "Waiting" in title], "the answer was given ahead"


def test_an_error_before_a_release_has_its_id_is_told_too(run, told):
    told.messages.clear()
    assert isinstance(run(Case({"resolve": {"error": "terminal"}}))[1], PipelineError)
    assert told.titles == ["Release tiny: failed"]


def test_an_error_after_which_a_stage_is_tried_again_is_told_once(release, run, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger(FAILURES), "disabled", True)  # as the command line silences it
    run(Case({"download": {"error": "transient"}}))
    lines = [line for line in caplog.messages if "the test asked for one transient error" in line]
    assert len(lines) == 1
    assert lines[0].endswith("; trying again in 0 s")


@pytest.mark.parametrize("stage", ["resolve", "canary/cpu-a:5"])
def test_the_error_that_ends_a_run_is_shown_once_and_last(release, in_process, capsys, stage):
    release.script(**{stage: {"error": "terminal"}})
    shutil.rmtree(release.root / "store", ignore_errors=True)
    assert main(["run", str(release.config), "--approve"]) == ExitCode.BAD_INPUT
    lines = [line for line in capsys.readouterr().err.splitlines() if "the test asked for" in line]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
