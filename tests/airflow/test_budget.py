"""The budget: who is asked when the plan exceeds it, once, without Airflow and with it."""

from __future__ import annotations

import pytest
from llm_pipeline_airflow.approvals import DecisionOperator
from llm_pipeline_airflow.dag_factory import release_dag
from llm_pipeline_airflow.task_endings import Refused

from llm_pipeline.base.errors import ConfigError, ExitCode
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.cli import main
from llm_pipeline.config.overrides import Overrides
from llm_pipeline.local_run import LocalRun
from llm_pipeline.operations.decisions import decide, put, read_decision, waiting_step
from llm_pipeline.planning.stage_cost import PlannedStage, check_budget
from llm_pipeline.questions import Question, budget_question
from llm_pipeline.release.flow import step_named
from llm_pipeline.release.loading import load_release
from llm_pipeline.release_progress import ReleaseProgress

RELEASE = "tiny-01234567-00000000"
pytestmark = pytest.mark.usefixtures("in_process")


@pytest.fixture
def project(without_hub):
    """A release whose canary alone is planned to take longer than its budget."""
    without_hub.add("releases/tiny", "budget: { hours: 0.001 }\n")
    return without_hub


def run(project, answer: bool | None, **overrides) -> tuple[Verdict, list[str]]:
    """The verdict of a run without Airflow, and the questions that it asked."""
    asked: list[str] = []

    def approve(question: str) -> bool | None:
        asked.append(question)
        return answer

    return LocalRun(project.config, approve=approve, overrides=Overrides.of(overrides)).run(), asked


def progress(project) -> ReleaseProgress:
    return ReleaseProgress.open(load_release(project.config).deployment, RELEASE)


def stages(project) -> set[str]:
    return {stage for stage, _ in progress(project).results()}


def reusable_keys(project) -> dict[tuple[str, str], str]:
    """Keys of the stages whose results are reused; a canary's own has the run in it."""
    found = progress(project).results().items()
    return {(stage, subject): one.key for (stage, subject), one in found if step_named(stage).reusable}


def test_an_approved_budget_is_not_asked_about_again(project):
    verdict, (question,) = run(project, True)
    assert verdict is Verdict.GO
    assert f"{RELEASE} is planned to take" in question
    assert question.endswith("and its budget is 3.6 s. Go on?")
    assert run(project, False) == (Verdict.GO, [])


@pytest.mark.parametrize(
    ("option", "hours", "hint"),
    [
        ("--approve-budget", "0.001", "more than the budget of 3.6 s"),
        ("--approve-license", "1000", "the licence changed (apache-2.0 -> llama3.3)"),
    ],
)
def test_approving_production_ahead_answers_neither_for_money_nor_for_a_licence(project, capsys, option, hours, hint):
    project.config.write_text(project.config.read_text().replace("hours: 0.001", f"hours: {hours}"))
    if option == "--approve-license":
        project.script(resolve={"metrics": {"license_change": "apache-2.0 -> llama3.3"}})
    assert main(["run", str(project.config), "--approve"]) == ExitCode.INCONCLUSIVE
    said = capsys.readouterr().err
    assert hint in said
    assert f"run it again with {option} (or --reject)" in said
    assert stages(project) == {"resolve", "report"}
    assert main(["run", str(project.config), "--reject", option]) == ExitCode.BAD_INPUT
    assert main(["run", str(project.config), "--reject"]) == ExitCode.NO_GO
    assert main(["run", str(project.config), "--approve", option]) == ExitCode.GO


def test_a_refused_budget_ends_the_release_before_anything_is_fetched_and_is_asked_about_again(project):
    for _ in range(2):
        verdict, asked = run(project, False)
        assert (verdict, len(asked)) == (Verdict.NO_GO, 1)
        assert stages(project) == {"resolve", "report"}
    assert run(project, None)[0] is Verdict.INCONCLUSIVE


def test_a_run_may_have_another_budget(project):
    assert run(project, False, budget_hours=100) == (Verdict.GO, [])
    record = progress(project).record
    assert record.budget.hours == 100
    assert record.overrides_in_words.startswith("budget in hours 100, by ")


def test_without_a_budget_nobody_is_asked_and_a_budget_changes_no_key_and_no_id(project):
    limited = project.config.read_text()
    project.config.write_text(limited.replace("budget: { hours: 0.001 }\n", ""))
    before = load_release(project.config)
    assert run(project, False) == (Verdict.GO, [])
    keys = reusable_keys(project)
    project.config.write_text(limited.replace("0.001", "100, cost: 10"))
    after = load_release(project.config)
    assert after.release == before.release  # the release's id, and every stage's config, are made of it
    assert after.config.budget.hours == 100
    assert run(project, False) == (Verdict.GO, [])
    assert reusable_keys(project) == keys


def test_an_approval_stands_for_as_much_and_for_less_but_not_for_more(project):
    run(project, False)
    flow = progress(project)

    def asks(**amounts: float) -> Question:
        return Question(line="?", title="?", body=str(amounts), declined="", open="", amounts=amounts)

    answered = put(flow, "plan", flow.targets, asks(hours=2.0, cost=5.0)).model_copy(update={"answer": "approved"})
    name = f"releases/{RELEASE}/decisions/plan.json"
    document = flow.store.read_document(name)
    flow.store.write_document(name, answered.model_dump(mode="json"), document.revision)
    assert put(flow, "plan", flow.targets, asks(hours=2.0, cost=5.0)).answer == "approved"
    assert put(flow, "plan", flow.targets, asks(hours=1.5)).answer == "approved"
    for more in ({"hours": 2.1, "cost": 5.0}, {"hours": 1.0, "tokens": 1.0}):
        assert put(flow, "plan", flow.targets, asks(**more)).answer == "waiting"
        flow.store.write_document(name, answered.model_dump(mode="json"), flow.store.read_document(name).revision)


def test_the_command_line_answers_the_question_that_waits(project):
    run(project, None)
    flow = progress(project)
    assert waiting_step(flow) == "plan"
    decide(flow, "plan", flow.targets, approved=True, by="ann")
    assert waiting_step(flow) == "approve"
    assert read_decision(flow, "plan").by == "ann"
    assert run(project, False) == (Verdict.GO, [])


def test_the_question_has_what_is_planned_and_what_may_be_spent(project):
    run(project, None)
    question = budget_question(progress(project))
    assert "| budget | 3.6 s |" in question.body
    assert "not known, and in no sum: download, baseline, quantize small, accuracy small" in question.body
    assert "resolve" not in question.body  # takes seconds
    assert set(question.amounts) == {"hours"}


def test_a_cost_is_refused_as_budget_where_a_gpu_has_no_price(project):
    loaded = load_release(project.config, Overrides(budget_cost=5))
    on_gpu = PlannedStage(stage="build", subject="h100", accelerator="H100-SXM5-80GB", gpus=1)
    check_budget(loaded, [PlannedStage(stage="build", subject="cpu-a")])
    with pytest.raises(ConfigError, match=r"budget\.cost: what an hour of H100-SXM5-80GB costs is not known") as told:
        check_budget(loaded, [on_gpu])
    assert "gpu_hour_prices" in str(told.value.hint)
    check_budget(load_release(project.config), [on_gpu])


def test_the_dag_shows_the_plan_and_asks_and_a_refusal_fails_it(project, monkeypatch, caplog):
    run(project, None)
    task = release_dag(project.config).get_task("plan")
    task.release_id = RELEASE
    monkeypatch.setattr(DecisionOperator, "check_claim", lambda *_, **__: None)
    monkeypatch.setattr(DecisionOperator, "ask", lambda operator, *_: operator.subject)
    caplog.set_level("INFO")
    assert task.execute({}) == "Spend more than the budget on demo/tiny?"
    assert "stages (" in caplog.text  # the plan's table
    event = {"chosen_options": ["Reject"], "params_input": {}, "responded_by_user": {"id": "1", "name": "anna"}}
    with pytest.raises(Refused, match=r"denied by anna, .*: .*is planned to take"):
        task.execute_complete({}, event)
