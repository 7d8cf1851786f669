"""What the terminal says of a run, from what Airflow answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.demo.local_airflow import TaskState
from llm_pipeline.demo.releases import Console, FollowedRun, load_decided_nothing


def airflow(log: list[str]) -> Any:
    task = TaskState("recipes.accuracy", 1, "int4_awq (1)", "failed", 2, 149.1)
    asked: dict[str, Any] = {}

    def task_log(*_: str, **of: int) -> list[str]:
        asked.update(of)
        return log

    return SimpleNamespace(
        run_state=lambda *_: "failed",
        task_states=lambda *_: [task],
        pending_approvals=lambda *_: [],
        task_log=task_log,
        asked=asked,
    )


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (["INFO begins", "ERROR first", "ERROR out of memory -> use a smaller batch\ntraceback", "INFO ends"], True),
        (["INFO begins"], False),
    ],
)
def test_a_task_that_failed_without_a_verdict_says_why(log, said, capsys):
    client = airflow(log)
    FollowedRun(client, SimpleNamespace(), Console()).follow("release__demo", "run")  # type: ignore[arg-type]
    lines = capsys.readouterr()
    shown = lines.out + lines.err
    assert "int4_awq" in shown
    assert ("out of memory -> use a smaller batch" in shown) is said
    assert "traceback" not in shown
    assert client.asked == {"attempt": 2, "map_index": 1}


@pytest.mark.parametrize(
    ("verdict", "again"), [(None, False), (Verdict.GO, False), (Verdict.NO_GO, False), (Verdict.INCONCLUSIVE, True)]
)
def test_only_a_load_test_that_decided_nothing_is_worth_a_second_try(verdict, again) -> None:
    found = None if verdict is None else SimpleNamespace(judgement=SimpleNamespace(verdict=verdict))
    flow = SimpleNamespace(targets=("cpu",), find=lambda stage, _: found if stage == "load_test" else None)
    assert load_decided_nothing(flow) is again  # type: ignore[arg-type]
