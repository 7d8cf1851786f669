"""The flow as data: its stages declare what it states of them, and steps can be added to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.release.execute import load_stage
from llm_pipeline.release.flow import FLOW, PROMOTION, TARGETS, with_steps
from llm_pipeline.release.step import Effect, Ending, Kind, Need, Scope, Step

STAGES = [step for step in FLOW if step.is_stage]
SMOKE = Step(
    name="smoke",
    title="Smoke",
    words="Asks one thing.",
    scope=Scope.TARGET,
    group=TARGETS,
    after=("staging",),
    before=("served_accuracy",),
)


def added(*steps: Step) -> dict[str, Step]:
    return {step.name: step for step in with_steps(FLOW, steps)}


@pytest.mark.parametrize("step", STAGES, ids=[step.name for step in STAGES])
def test_a_stage_declares_what_the_flow_states_of_it(step):
    stage = load_stage(step.name)
    assert (stage.name, stage.reusable) == (step.stage_name, step.reusable)


def test_a_stage_that_is_added_stands_between_what_it_comes_after_and_what_waits_for_it():
    steps = added(SMOKE)
    names = list(steps)
    assert names.index("smoke") == names.index("staging") + 1
    assert steps["served_accuracy"].after == ("smoke",)


def test_a_step_of_the_whole_release_splits_no_group():
    names = list(added(Step(name="tell", title="Tell", words="Tells.", after=("load_test",), before=("approve",))))
    assert names[names.index("tell") - 1] == "staging_down"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "build"}, "'build' is in the flow already"),
        ({"after": ("stagin",)}, "names unknown steps: stagin"),
        ({"after": ()}, "comes after no step"),
        ({"needs": (Need("build", Ending.FAILED),)}, "needs build, which is done for several recipes or targets"),
        ({"group": PROMOTION, "after": ("approve_step",)}, "in, or before, promotion, whose items come in turn"),
        ({"before": ("quantize",)}, "in, or before, recipes, whose items come in turn"),
        ({"kind": Kind.QUESTION}, "is no stage"),
        ({"before": ("build",)}, "is to come before build, and after a later one"),
    ],
)
def test_a_step_that_does_not_fit_in_is_refused(changes, message):
    values = {"name": "smoke", "title": "Smoke", "words": "Asks.", "after": ("staging",)} | changes
    with pytest.raises(ConfigError, match=message):
        with_steps(FLOW, [Step(**values)])


PAGE = (Path(__file__).parents[2] / "docs" / "stages.md").read_text()


def test_the_page_has_the_table_that_the_flow_states():
    rows = ["| step | works on | changes | a verdict other than GO ends |", "|---|---|---|---|"]
    for step in (one for one in FLOW if not one.stage):
        changes = "" if step.effect is Effect.NONE else step.effect.value
        gate = f"the {step.ends.value}" if step.ends else ""
        rows.append(f"| `{step.name}` | {step.scope.value} | {changes} | {gate} |")
    table = "\n".join(rows)
    assert table in PAGE, f"put this table into the page:\n{table}"


def test_the_page_has_notes_on_every_step_in_order():
    assert re.findall(r"^- `(\w+)`: ", PAGE, re.MULTILINE) == [step.name for step in FLOW if not step.stage]
