"""The flow of a release, stated once: its steps in order, as data.

The Airflow DAG, the run without Airflow, the plan, the report, the placement on queues and pools and `docs/stages.md`
interpret it. To add a step, add it here, with a module of its name in `llm_pipeline.stages`; or name it in the entry
point group `llm_pipeline.steps` of a package of your own, with `before` saying which steps wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import entry_points

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.release.step import (
    Condition,
    Effect,
    Ending,
    Environment,
    Gpus,
    Group,
    InTurn,
    Kind,
    Machine,
    Need,
    Scope,
    Start,
    Step,
    Work,
)

ENTRY_POINTS = "llm_pipeline.steps"
"""Entry point group of the steps that other packages add; each names one `Step`."""

APPROVAL = "approve"
"""The question before production."""

_NEVER: Condition = lambda _release, _percent: False  # noqa: E731

_PREPARED = (Need("download", Ending.SKIPPED), Need("baseline_gate", Ending.SKIPPED))

RECIPES = Group(
    name="recipes",
    title="Recipes",
    one="Recipe",
    words="Quantize and judge, recipe by recipe",
    over=Scope.RECIPE,
    in_turn=InTurn(after=("accuracy", "baseline_gate"), needs=_PREPARED),
    side_by_side=lambda release: release.ladder.strategy == "every",
)
TRIALS = Group(
    name="trials",
    title="Trials",
    one="Trial",
    words="Build, serve and load-test what passed, one candidate after the other",
    over=Scope.CANDIDATE,
    in_turn=InTurn(after=("trial_load_test", "trial_staging_down"), needs=_PREPARED),
)
TARGETS = Group(
    name="targets", title="Targets", one="Target", words="Choose, build and judge, target by target", over=Scope.TARGET
)
PROMOTION = Group(
    name="promotion",
    title="Promotion",
    one="Promotion",
    words="To production",
    over=Scope.TARGET,
    in_turn=InTurn(after=(APPROVAL, "rollback"), needs=(Need(APPROVAL, Ending.SKIPPED),), stopped_by="settle"),
    offered_by=APPROVAL,
)

_target_step = partial(Step, scope=Scope.TARGET, group=TARGETS, machine=Machine.TARGET_HOST)
_promotion_step = partial(Step, group=PROMOTION, machine=Machine.TARGET_HOST, effect=Effect.PRODUCTION)
_question = partial(Step, kind=Kind.QUESTION, work=Work.PERSON)
_model_step = partial(
    Step, machine=Machine.QUANTIZATION_HOST, gpus=Gpus.TAKEN, heavy=True, environment=Environment.MODEL
)
"""Runs the model's weights on the host that quantizes."""

_SERVED: tuple[Step, ...] = (
    _target_step(
        name="build",
        title="Build",
        words="Builds the engine for one target.",
        after=("choose",),
        gpus=Gpus.TAKEN,
        heavy=True,
        environment=Environment.OF_TARGET,
        work=Work.BUILD,
    ),
    _target_step(
        name="package",
        title="Package",
        words="Makes the model repository that the server loads, with golden answers beside it.",
        after=("build",),
    ),
    _target_step(
        name="staging",
        title="Staging",
        words="Starts a server with the candidate and asks it the golden prompts.",
        after=("package",),
        ends=Scope.TARGET,
        effect=Effect.STAGING,
        gpus=Gpus.TAKEN,
        work=Work.SERVER_START,
    ),
    _target_step(
        name="served_accuracy",
        title="Served accuracy gate",
        words="Scores the served model: the engine may differ from the checkpoint.",
        after=("staging",),
        ends=Scope.TARGET,
        gpus=Gpus.TAKEN,
        environment=Environment.MODEL,
        work=Work.SERVED_SCORING,
    ),
    _target_step(
        name="load_test",
        title="Load test gate",
        words="Sends the workload at its scheduled times and judges the service level.",
        after=("served_accuracy",),
        ends=Scope.TARGET,
        gpus=Gpus.TAKEN,
        work=Work.LOAD,
    ),
    _target_step(
        name="staging_down",
        title="Stop staging",
        words="Stops the staging server. Always runs.",
        after=("load_test",),
        tears_down=("staging",),
        decides=False,
        effect=Effect.STAGING,
    ),
)
"""What builds, serves and judges one target."""


def _tried(step: Step) -> Step:
    """The same step for each candidate, in a release by cost."""
    first = step.name == "build"
    return replace(
        step,
        name=f"trial_{step.name}",
        title=f"Trial: {step.title.lower()}",
        task=step.name,
        stage=step.name,
        scope=Scope.CANDIDATE,
        group=TRIALS,
        after=("accuracy", "baseline_gate") if first else tuple(f"trial_{name}" for name in step.after),
        start=Start.ALWAYS if first else step.start,  # one recipe that passed is enough
        needs=_PREPARED if first else (),
        ends=step.ends and Scope.CANDIDATE,
        tears_down=tuple(f"trial_{name}" for name in step.tears_down),
        when=lambda release, _percent: release.ladder.objective == "cost",
    )


FLOW: tuple[Step, ...] = (
    Step(
        name="claim",
        title="Acquire lock",
        words="Waits, without a worker, until no other release of the model is running.",
        kind=Kind.CLAIM,
    ),
    Step(
        name="resolve",
        title="Resolve",
        words="Pins the revision to a commit, records the release and stores the data sets that its gates read.",
        after=("claim",),
        effect=Effect.RECORD,
    ),
    _question(
        name="plan",
        title="Plan",
        words="Shows the plan, and asks a person if it exceeds the budget; otherwise continues by itself.",
        after=("resolve",),
        planned=_NEVER,
    ),
    _question(
        name="review_license",
        title="Licence review",
        words="Asks a person if the licence or gating changed since the release before; else continues by itself.",
        after=("plan",),
        planned=_NEVER,
    ),
    Step(
        name="eval_data",
        title="Evaluation data",
        words="Fetches the data sets that tasks read, at pinned commits; the gates themselves work offline.",
        after=("review_license",),  # before the download: it takes seconds, and what it refuses costs no download
        environment=Environment.MODEL,
    ),
    Step(
        name="download",
        title="Download",
        words="Fetches the weights of that commit; every byte is checked against the hub's hashes.",
        after=("eval_data",),
        work=Work.DOWNLOAD,
    ),
    _model_step(
        name="baseline",
        title="Baseline",
        words="Scores the unquantized model: every candidate is compared with it, item by item.",
        after=("download",),
        work=Work.SCORING,
    ),
    Step(
        name="baseline_gate",
        title="Baseline gate",
        words=(
            "Judges the unquantized model by itself: its expected scores, and whether it does better than guessing. "
            "Another verdict than GO stops the release; the table in the log says why."
        ),
        after=("baseline",),
        ends=Scope.RELEASE,
    ),
    _model_step(
        name="quantize",
        title="Quantize",
        words=(
            "Quantizes with one recipe and exports a checkpoint, or fetches the one that the recipe names. Skipped "
            "when a cheaper recipe passed; the log says which."
        ),
        scope=Scope.RECIPE,
        group=RECIPES,
        after=("download",),
        useless_without=("baseline_gate",),  # the first recipe does not wait for it
        work=Work.QUANTIZATION,
    ),
    _model_step(
        name="accuracy",
        title="Accuracy gate",
        words=(
            "Compares the quantized model with the baseline, paired by item. Another verdict than GO stops this recipe "
            "only; the table in the log says why."
        ),
        scope=Scope.RECIPE,
        group=RECIPES,
        after=("quantize", "baseline_gate"),
        ends=Scope.RECIPE,
        work=Work.COMPARISON,
    ),
    *map(_tried, _SERVED),
    _target_step(
        name="choose",
        title="Choose",
        words="Picks the cheapest recipe that passed for this target, by size or measured cost. Fails when none did.",
        after=("baseline_gate", "accuracy", "trial_load_test", "trial_staging_down"),
        start=Start.ALWAYS,  # one recipe that passed is enough
        needs=(Need("download", Ending.FAILED), Need("baseline_gate", Ending.FAILED)),
        ends=Scope.TARGET,
    ),
    *_SERVED,
    _question(
        name=APPROVAL,
        title="Production approval",
        words="The decision before production. No answer in time is a denial.",
        after=("load_test",),
        start=Start.ANY_GOOD,  # one target that passed is enough to ask
        planned=lambda release, _percent: release.approval.required,
    ),
    _question(
        name="approve_step",
        title="Step approval",
        words=(
            "The decision before a step, with what the one before it measured. No answer in time is a denial: "
            "the promotion fails, and the rollback follows."
        ),
        scope=Scope.CANARY_STEP,
        group=PROMOTION,
        after=("approve",),
        when=lambda release, percent: percent in release.policy.canary.approve_before_percent,
        task="approve",
    ),
    _promotion_step(
        name="canary",
        title="Canary",
        words=(
            "Moves this share of the traffic to the candidate and compares it with the stable version. "
            "A verdict other than GO ends the promotion; the rollback follows."
        ),
        scope=Scope.CANARY_STEP,
        after=("approve_step",),
        ends=Scope.TARGET,
        gpus=Gpus.HELD,
        work=Work.BAKE,
    ),
    _promotion_step(
        name="settle",
        title="Settle",
        words="Makes the candidate the production version and keeps the previous one ready.",
        scope=Scope.TARGET,
        after=("canary",),
    ),
    _promotion_step(
        name="rollback",
        title="Rollback",
        words="Gives traffic back to the stable version unless the release was promoted. Runs once traffic moved.",
        scope=Scope.TARGET,
        after=("settle",),
        tears_down=("canary",),
        decides=False,
        unless="settle",
    ),
    Step(
        name="report",
        title="Report",
        words="Writes the release's report: the tab beside this graph. Always runs.",
        after=("quantize", "staging_down", "rollback"),  # quantizing may outlive a baseline that failed
        start=Start.ALWAYS,
        needs=(Need("resolve", Ending.SKIPPED),),
        decides=False,
        effect=Effect.RECORD,
    ),
    Step(
        name="give_back",
        title="Free lock",
        words="Lets the next release of the model begin. Always runs once the turn was taken.",
        kind=Kind.CLAIM,
        after=("report",),
        tears_down=("claim",),
        decides=False,
    ),
)


@cache
def release_flow() -> tuple[Step, ...]:
    """The steps of a release in order, with those that installed packages add.

    Raises:
        ConfigError: A package's step does not fit in.
    """
    found = sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name)
    return with_steps(FLOW, (point.load() for point in found)) if found else FLOW


def step_named(name: str) -> Step | None:
    """The step of that name; None where there is none."""
    return next((step for step in release_flow() if step.name == name), None)


def clears_up(name: str) -> bool:
    """Whether a step runs even if those before it failed, so that it does not show how far the release got."""
    step = step_named(name)
    return step is not None and not step.decides


def steps_of(work: Work) -> tuple[str, ...]:
    """Names of the steps whose time goes into that."""
    return tuple(step.name for step in release_flow() if step.work is work and not step.stage)


def stage_names() -> tuple[str, ...]:
    """The steps that a stage's process does, in order."""
    return tuple(step.name for step in release_flow() if step.is_stage and not step.stage)


def with_steps(flow: tuple[Step, ...], added: Iterable[Step]) -> tuple[Step, ...]:
    """A flow with further stages, each behind the last step that it comes after.

    Such a stage is done for each target before the approval, or once. It may be a gate: what waits for it then waits
    for its verdict. Recipes and promotions, whose items come in turn, take none.

    Raises:
        ConfigError: A step's name is taken, it names one that the flow does not have, or it would stand where it
            cannot.
    """
    for step in added:
        place = _place(flow, step)
        waiting = tuple(_behind(one, step) if one.name in step.before else one for one in flow)
        flow = (*waiting[:place], step, *waiting[place:])
    return flow


def _place(flow: tuple[Step, ...], added: Step) -> int:
    """Where a step goes: inside its own group, and not inside another one."""
    by_name = {one.name: one for one in flow}
    if not added.is_stage:
        raise ConfigError(f"step {added.name!r} is no stage", hint="questions to people are the flow's own")
    if added.name in by_name:
        raise ConfigError(f"step {added.name!r} is in the flow already", hint="give the added step another name")
    if unknown := [name for name in (*added.after, *added.before) if name not in by_name]:
        missing = f"step {added.name!r} names unknown steps: {', '.join(unknown)}"
        raise ConfigError(missing, hint=f"steps are: {', '.join(by_name)}")
    if not added.after:
        raise ConfigError(f"step {added.name!r} comes after no step", hint="name a step in `after`")
    for group in (added.group, *(by_name[name].group for name in added.before)):
        if group is not None and group.in_turn is not None:
            problem = f"step {added.name!r} stands in, or before, {group.name}, whose items come in turn"
            raise ConfigError(problem, hint="name a step before them in `before`: `baseline`, say, or `approve`")
    if grouped := [need.step for need in added.needs if by_name[need.step].group is not None]:
        problem = f"step {added.name!r} needs {', '.join(grouped)}, which is done for several recipes or targets"
        raise ConfigError(problem, hint="name them in `after`; `needs` is for steps that are done once")
    names = list(by_name)
    place = 1 + max(names.index(name) for name in added.after)
    own = [number for number, one in enumerate(flow) if added.group is not None and one.group == added.group]
    if own:
        place = max(place, own[0])
    else:
        while place < len(flow) and flow[place].group is not None and flow[place].group == flow[place - 1].group:
            place += 1
    if early := [name for name in added.before if names.index(name) < place]:
        raise ConfigError(f"step {added.name!r} is to come before {', '.join(early)}, and after a later one")
    return place


def _behind(waiting: Step, added: Step) -> Step:
    """A step that waits for an added one instead of what that one waits for itself."""
    kept = tuple(name for name in waiting.after if name not in added.after)
    return replace(waiting, after=(*kept, added.name))
