"""The decision before production: one document, whoever asks, and the promotion goes by it."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred
from llm_pipeline_airflow import approvals
from llm_pipeline_airflow.approvals import DecisionOperator, DecisionTrigger, QuestionOperator
from llm_pipeline_airflow.dag_factory import release_dag
from llm_pipeline_airflow.states import require_begun
from llm_pipeline_airflow.task_endings import Refused, ReleaseNotifier
from place_here import pointer, serve

from llm_pipeline.base.errors import Transient
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.router import Patience
from llm_pipeline.cli import main
from llm_pipeline.local_run import LocalRun
from llm_pipeline.operations.decisions import NotApproved, decide, put, require_production_approved
from llm_pipeline.operations.upkeep import NotPromoted, promote
from llm_pipeline.questions import production_question
from llm_pipeline.release.contract import StageContext
from llm_pipeline.release.decision import Decision, decision_name
from llm_pipeline.release.execute import results_name
from llm_pipeline.release.loading import load_release
from llm_pipeline.release.record import report_name
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.stages import canary
from llm_pipeline.store.place_state import PlaceTaken, claim_place, read_place

RELEASE = "tiny-01234567-00000000"
NAME = decision_name(RELEASE, "approve")
BOTH = ["cpu-a", "cpu-b"]
PULL = {"xcom_pull": lambda **_: [{"subject": target} for target in BOTH]}
CONTEXT = {"ti": SimpleNamespace(dag_id="tiny", run_id="r", **PULL)}
ASKED = "asked"


@pytest.fixture(scope="module")
def released(tmp_path_factory, make_project, in_process):
    """A release that a person approved on the terminal, up to its end; and a copy of its store."""
    project = make_project(tmp_path_factory.mktemp("released"), approval=True)
    project.script()
    assert LocalRun(project.config, approve=lambda _: True).run() is Verdict.GO
    shutil.copytree(project.root / "store", project.root / "kept")
    return project


@pytest.fixture
def flow(released) -> ReleaseProgress:
    shutil.rmtree(released.root / "store")
    shutil.copytree(released.root / "kept", released.root / "store")
    return flow_of(released)


def flow_of(project) -> ReleaseProgress:
    return ReleaseProgress.open(load_release(project.config).deployment, RELEASE)


def standing(flow: ReleaseProgress) -> Decision:
    document = flow.store.read_document(NAME)
    assert document is not None
    return Decision.model_validate(document.value)


def forget(flow: ReleaseProgress) -> None:
    flow.store.delete_document(NAME)


def test_an_answer_at_the_terminal_is_a_document_that_says_who_when_and_about_what(flow) -> None:
    decision = standing(flow)
    assert (decision.answer, decision.targets) == ("approved", ("cpu-a", "cpu-b"))
    assert "@" in decision.by
    assert decision.by.endswith("run without Airflow")
    assert 0 < decision.asked_at <= decision.answered_at


def promoted(flow: ReleaseProgress) -> None:
    """Its canary did not run here: what is approved is refused for that."""
    repository = ArtifactRef(kind="model_repository", digest="b" * 64)
    with pytest.raises(NotPromoted):
        promote(
            flow.store, "cpu-a", model_id=flow.record.model.id, release_id=RELEASE, repository=repository,
            recipe="small", find_router=lambda _: None, patience=Patience(),
        )  # fmt: skip


def on_trial(flow: ReleaseProgress) -> None:
    """Another model holds the place: what is approved is refused for that."""
    if not read_place(flow.store, "cpu-a").model_id:
        claim_place(flow.store, "cpu-a", "demo/other", by="other")
    request = flow.request("canary", "cpu-a:5")
    config = canary.CanaryConfig.model_validate(request.config)
    with pytest.raises(PlaceTaken):
        canary.run(StageContext(request, config, {}, Path("/nowhere"), flow.store, "key"))


@pytest.mark.parametrize("act", [promoted, on_trial])
def test_without_an_approval_of_this_run_and_of_these_gates_nothing_is_promoted(flow, act) -> None:
    act(flow)
    document = flow.store.read_document(NAME)

    def stands(**changes: object) -> None:
        now = flow.store.read_document(NAME)
        value = {**document.value, **changes}
        flow.store.write_document(NAME, value, now.revision if now else None)

    for changes, why in (
        ({"answer": "denied"}, "the question is denied by"),
        ({"answer": "waiting", "by": ""}, "the question is waiting"),
        ({"run": "2026-01-01T00:00:00+00:00"}, "nobody approved cpu-a in this run"),
        ({"targets": ["cpu-b"]}, "nobody approved cpu-a in this run"),
        ({"evidence": "0" * 64}, "the gates say something else than what"),
    ):
        stands(**changes)
        with pytest.raises(NotApproved, match=why):
            act(flow)
    stands()
    load = results_name(RELEASE, "load_test", "cpu-b")
    found = flow.store.read_document(load)
    judged = {**found.value["judgement"], "summary": "slower than it was"}
    flow.store.write_document(load, {**found.value, "judgement": judged}, found.revision)
    with pytest.raises(NotApproved, match="the gates say something else than what"):
        act(flow)
    forget(flow)
    with pytest.raises(NotApproved, match="nobody approved cpu-a in this run"):
        act(flow)


def test_the_first_answer_stands_until_the_question_is_put_again(flow) -> None:
    told = decide(flow, "approve", BOTH, approved=False, by="bob")
    assert not told.counted
    assert told.message.startswith("too late, nothing was changed: it was approved by ")
    assert put(flow, "approve", BOTH, production_question(flow, BOTH)).answer == "waiting"
    assert decide(flow, "approve", BOTH, approved=False, by="bob").counted
    assert (standing(flow).answer, standing(flow).by) == ("denied", "bob")


def test_who_answers_on_the_command_line_may_refuse_a_target_and_is_not_asked_again(
    tmp_path, make_project, in_process, monkeypatch, capsys
) -> None:
    project = make_project(tmp_path, approval=True)
    project.script()
    monkeypatch.setenv("LLM_PIPELINE_DEPLOYMENT", str(project.root / "configs/deployments/here.yaml"))

    def answer(request) -> None:  # right before it would be asked
        if (request.stage, request.subject) == ("staging_down", "cpu-b"):
            for arguments, code in (("--target cpu-c", 4), ("--target cpu-b", 0), ("--deny", 2)):
                assert main(["approve", "tiny", *arguments.split()]) == code

    monkeypatch.setattr(in_process, "before", answer)
    monkeypatch.setattr(in_process, "ran", [])
    assert LocalRun(project.config, approve=pytest.fail).run() is Verdict.GO
    said = capsys.readouterr()
    assert "nobody is asked about cpu-c -> it is about cpu-a, cpu-b" in said.err
    assert f"approved: {RELEASE} on cpu-b\n" in said.out
    assert "too late, nothing was changed: it was approved by " in said.out
    assert standing(flow_of(project)).asked_at is None
    moved = [subject for stage, subject in in_process.ran if stage in ("canary", "settle")]
    assert moved == ["cpu-b:5", "cpu-b:100", "cpu-b"], "cpu-a comes first, and is left as it is"
    assert not [stage for stage, _ in in_process.ran if stage == "rollback"]


@pytest.fixture
def task(released, flow, monkeypatch) -> QuestionOperator:
    forget(flow)
    task = release_dag(released.config).get_task("approve")
    task.release_id = RELEASE
    monkeypatch.setattr(QuestionOperator, "check_claim", lambda *_, **__: None)
    monkeypatch.setattr(QuestionOperator, "ask", lambda *_: ASKED)
    hitl = "airflow.providers.standard.operators.hitl.ApprovalOperator.execute_complete"
    monkeypatch.setattr(hitl, lambda _self, _context, event: event["chosen_options"])
    return task


def answered(task, option: str, *, timed_out: bool = False, params_input: dict | None = None):
    user = {"id": "1", "name": "anna"}
    event = {"chosen_options": [option], "responded_by_user": user, "timedout": timed_out, "params_input": params_input}
    return task.execute_complete(CONTEXT, {**event, "responded_at": datetime.now(UTC)})


@pytest.mark.parametrize(
    ("option", "timed_out", "stands"),
    [
        ("Approve", False, ("approved", "anna")),
        ("Reject", False, ("denied", "anna")),
        ("Reject", True, ("timed out", "")),
    ],
)
def test_an_answer_in_airflow_is_the_same_document(task, flow, option, timed_out, stands) -> None:
    assert task.execute(CONTEXT) == ASKED
    assert standing(flow).answer == "waiting"
    if option == "Approve":
        assert answered(task, option) == [option]
    else:
        with pytest.raises(Refused, match=r"(denied by anna|not answered in time), 20.* UTC: Promote "):
            answered(task, option, timed_out=timed_out)
    assert (standing(flow).answer, standing(flow).by) == stands


def test_who_approves_sees_what_is_replaced_the_accuracy_the_cost_and_a_draft_of_the_report(task, flow) -> None:
    serve(flow.store, "demo/tiny", "cpu-a", pointer("old-1"))
    flow.store.write_file(report_name(RELEASE), b"")
    assert task.execute(CONTEXT) == ASKED
    for told in (
        "On cpu-a it replaces old-1.",
        "On cpu-b it replaces nothing.",
        "| a fact | GO | 50.00 % |",
        "The release has taken ",
        "(dags/tiny/runs/r/plugin/release-report)",
        f"(llm-pipeline/compare?release={RELEASE}&release=old-1)",
    ):
        assert told in task.body
    assert b"the report" in flow.store.read_file(report_name(RELEASE))
    assert answered(task, "Approve") == ["Approve"], "what is replaced is no part of what is approved"


def test_who_approves_may_refuse_a_target(released, task, flow) -> None:
    assert task.execute(CONTEXT) == ASKED
    assert task.params["targets"] == BOTH
    answered(task, "Approve", params_input={"targets": ["cpu-b"]})
    assert standing(flow).in_words.startswith("approved by anna for cpu-b, ")
    require_production_approved(flow.store, RELEASE, "cpu-b")
    with pytest.raises(NotApproved, match="anna refused cpu-a"):
        require_production_approved(flow.store, RELEASE, "cpu-a")
    step = release_dag(released.config).get_task("promotion_1.canary_5").flow_task
    last = {"promotion_1.settle_0": "success", "approve": "success"}
    ti = SimpleNamespace(get_task_states=lambda **_: {"r": last}, **vars(CONTEXT["ti"]))
    with pytest.raises(AirflowSkipException, match="anna did not take it"):
        require_begun({"ti": ti}, step, "cpu-a", lambda: flow)
    require_begun({"ti": ti}, step, "cpu-b", lambda: flow)


@pytest.mark.parametrize(
    ("states", "passed", "why"),
    [
        ({"approve": "skipped", "promotion_1.settle_0": "success"}, BOTH, "approve did not succeed in this run"),
        ({"promotion_1.settle_0": "failed"}, BOTH, "cpu-a comes first and was not promoted"),
        ({"promotion_1.settle_0": "upstream_failed"}, BOTH, "cpu-a comes first and was not promoted"),
        ({"promotion_1.settle_0": "skipped"}, BOTH, "cpu-a comes first and was not promoted"),
        ({"promotion_1.settle_0": "success"}, ["cpu-a"], r"cpu-b did not pass targets\.load_test"),
        ({"promotion_1.settle_0": "upstream_failed"}, ["cpu-b"], None),  # what was never offered stops no other
        ({"promotion_1.settle_0": "success"}, BOTH, None),
    ],
)
def test_a_target_begins_after_the_approval_its_own_gates_and_the_targets_before_it(
    released, flow, states, passed, why
) -> None:
    """Though the trigger rule of its first step is `all_done`."""
    states = {"approve": "success"} | states

    def seen(task_ids, **_run) -> dict[str, dict[str, str]]:
        return {"r": {name: state for name, state in states.items() if name.removesuffix("_0") in task_ids}}

    results = [{"subject": target} for target in passed]
    ti = SimpleNamespace(dag_id="tiny", run_id="r", get_task_states=seen, xcom_pull=lambda **_: results)
    step = release_dag(released.config).get_task("promotion_2.canary_5").flow_task
    refused = pytest.raises((AirflowSkipException, AirflowFailException), match=why)
    with refused if why else nullcontext():
        require_begun({"ti": ti}, step, "cpu-b", lambda: flow)


TI_ID = "01900000-0000-7000-8000-000000000000"
AIRFLOW = "https://airflow.example"
NAMED = {"dag_id": "tiny", "run_id": "r", "task_id": "approve", "map_index": -1, "try_number": 1}
TI = SimpleNamespace(id=TI_ID, **PULL, **NAMED)


@pytest.fixture
def closed_forms(monkeypatch) -> list[tuple[str, list[str]]]:
    """The forms that were answered for their users; Airflow's supervisor, to which that is said, is not here."""
    closed: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(approvals, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(
        approvals, "update_hitl_detail_response", lambda ti_id, chosen, _: closed.append((str(ti_id), chosen))
    )
    return closed


@pytest.fixture
def trigger(task, closed_forms, monkeypatch) -> DecisionTrigger:
    """What the task waits by, once it has asked."""
    monkeypatch.setattr(QuestionOperator, "ask", DecisionOperator.ask)
    monkeypatch.setattr(QuestionOperator, "parks", False)
    monkeypatch.setattr("airflow.providers.standard.operators.hitl.upsert_hitl_detail", lambda **_: None)
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", AIRFLOW)
    with pytest.raises(TaskDeferred) as deferred:
        task.execute({"task": task, "ti": TI, "task_instance": TI})
    assert deferred.value.method_name == "execute_complete"
    assert deferred.value.timeout > task.response_timeout
    path, arguments = deferred.value.trigger.serialize()
    assert path == f"{DecisionTrigger.__module__}.{DecisionTrigger.__name__}"
    return DecisionTrigger(**arguments)


def fired(trigger: DecisionTrigger, seconds: float = 30.0) -> dict:
    async def first() -> dict:
        return (await anext(trigger.run())).payload

    return asyncio.run(asyncio.wait_for(first(), seconds))


def test_a_question_that_waits_is_told_with_its_page_and_how_to_answer_and_so_is_its_answer(
    told, task, flow, trigger, closed_forms
) -> None:
    question = told.messages[-1]
    assert question["title"] == "Waiting for a person: Promote demo/tiny to production on cpu-a, cpu-b?"
    assert question["type"] == "warning"
    for part in (
        f"`llm-pipeline approve {RELEASE} [--deny]`",
        "UTC, or it is a rejection",
        f"{AIRFLOW}/dags/tiny/runs/r/tasks/approve/required_actions?map_index=-1",
    ):
        assert part in question["message"]
    assert decide(flow, "approve", BOTH, approved=False, by="bob").counted
    with pytest.raises(Refused):
        task.execute_complete(CONTEXT, fired(trigger))
    ReleaseNotifier("failed")({"task": task, "ti": TI})
    assert "What: denied by bob" in told.messages[-1]["message"]


@pytest.mark.parametrize(("approved", "option"), [(True, "Approve"), (False, "Reject")])
def test_an_answer_on_the_command_line_ends_a_form_that_already_waits(task, trigger, closed_forms, approved, option):
    flow = task.flow()
    assert decide(flow, "approve", BOTH, approved=approved, by="bob").counted
    event = fired(trigger)
    assert closed_forms == [(TI_ID, [option])]
    with nullcontext() if approved else pytest.raises(Refused, match="denied by bob"):
        assert task.execute_complete(CONTEXT, event) == [option]
    assert standing(flow).by == "bob"
    forget(flow)
    assert decide(flow, "approve", BOTH, approved=approved, by="ann").counted
    with nullcontext() if approved else pytest.raises(Refused, match="denied by ann"):  # answered before it was asked
        assert task.execute(CONTEXT) == [option]


def test_a_form_waits_on_while_nobody_answers_its_own_question_and_the_store_cannot_be_read(
    flow, trigger, closed_forms, monkeypatch
) -> None:
    with pytest.raises(TimeoutError):
        fired(trigger, 0.2)
    document = flow.store.read_document(NAME)
    other = {**document.value, "answer": "approved", "run": "2026-01-01T00:00:00+00:00"}
    revision = flow.store.write_document(NAME, other, document.revision)
    with pytest.raises(TimeoutError):
        fired(trigger, 0.2)
    flow.store.write_document(NAME, {**document.value, "answer": "approved", "by": "bob"}, revision)
    look, tries = trigger._look, []

    def unreachable() -> bool | None:
        tries.append(1)
        if len(tries) < 3:
            raise Transient("the store is away")
        return look()

    monkeypatch.setattr(trigger, "_look", unreachable)
    assert closed_forms == []
    assert fired(trigger)["chosen_options"] == ["Approve"]
    assert len(tries) == 3


def test_without_an_answer_in_time_the_form_is_rejected(task, flow, trigger, closed_forms) -> None:
    trigger.until = datetime.now(UTC).isoformat()
    event = fired(trigger)
    assert (event["timedout"], closed_forms) == (True, [(TI_ID, ["Reject"])])
    with pytest.raises(Refused, match="not answered in time"):
        task.execute_complete(CONTEXT, event)
    assert (standing(flow).answer, standing(flow).by) == ("timed out", "")
