"""The flow as data: its stages declare what it states of them, and steps can be added to it."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.release.flow import FLOW, PROMOTION, TARGETS, release_flow, stage_names, with_steps
from llm_pipeline.release.registry import load_stage
from llm_pipeline.release.step import Ending, Environment, Kind, Need, Scope, Step

REPOSITORY = Path(__file__).parents[2]
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
    if step.environment is not Environment.OF_TARGET:
        assert stage.environment == step.environment


def test_every_step_comes_after_steps_that_are_stated_before_it():
    known: set[str] = set()
    for step in FLOW:
        assert known.issuperset((*step.after, *step.tears_down, *(need.step for need in step.needs)))
        known.add(step.name)


def test_every_step_has_words_for_people():
    assert all(step.title and step.words.endswith(".") for step in FLOW)


def test_no_two_steps_or_groups_have_the_same_title():
    titles = [step.title for step in FLOW] + [
        title for group in {step.group for step in FLOW} if group for title in {group.title, group.one}
    ]
    assert sorted(titles) == sorted(set(titles))


def test_each_group_stands_in_one_piece():
    groups = [group for group, _ in itertools.groupby(FLOW, key=lambda step: step.group) if group]
    assert len(groups) == len({group.name for group in groups})


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


def test_nothing_else_is_installed_here():
    assert release_flow() == FLOW


def test_one_file_alone_names_the_steps():
    naming = []
    for path in (*(REPOSITORY / "llm_pipeline").rglob("*.py"), *(REPOSITORY / "plugins").rglob("*.py")):
        constants = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
        if len({one.value for one in constants if isinstance(one.value, str)} & {*stage_names()}) >= 8:
            naming.append(path.relative_to(REPOSITORY).as_posix())
    assert naming == ["llm_pipeline/release/flow.py"]
