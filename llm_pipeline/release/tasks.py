"""The tasks that the flow comes to for one release config: what each works on, and what it comes after.

    tasks = release_tasks(release, recipes)
    [task.id for task in tasks]  # ["claim", "resolve", ..., "recipes_1.quantize", ..., "targets.build", ...]

A task is what Airflow draws: mapped over the items of its lane. Its instances are what one machine runs one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.release.candidate import Candidate, candidates
from llm_pipeline.release.flow import release_flow
from llm_pipeline.release.step import Ending, Group, Kind, Scope, Start, Step

TaskIds = tuple[str, ...]


@dataclass(frozen=True)
class Lane:
    """Items that go through the steps of a group side by side.

    Attributes:
        id: Id of the task group.
        items: Recipes or targets.
        number: From 1 on, where a group's items come in turn.
    """

    id: str
    title: str
    group: Group
    items: tuple[str, ...]
    number: int = 1


@dataclass(frozen=True)
class TaskNeed:
    """Tasks that must have ended well though the start rule lets a task begin, and how it ends otherwise."""

    tasks: TaskIds
    otherwise: Ending


@dataclass(frozen=True)
class Task:
    """One step at its place in a release.

    Attributes:
        after: Ids of the tasks that must have ended: for a task of the same lane, those of the same item.
        needs: What must have ended well besides, whatever the start rule says.
        offered: Tasks that must have ended well for this very item, or it fails.
        stopped_by: By each earlier item: if it was offered itself, this task of it must have ended well.
        useless_without: Tasks of which none may have failed by the time it starts.
        tears_down: Tasks of the same item whose work it takes back.
        gates: Of the question before production, the last tasks of the targets that it may be about.
        unless: Tasks of the same item after whose success nothing is left to do.
        percent: The share of a canary step.
    """

    id: str
    title: str
    step: Step
    after: TaskIds = ()
    start: Start = Start.ALL_GOOD
    lane: Lane | None = None
    needs: tuple[TaskNeed, ...] = ()
    offered: TaskIds = ()
    stopped_by: tuple[tuple[str, str], ...] = ()
    useless_without: TaskIds = ()
    tears_down: TaskIds = ()
    unless: TaskIds = ()
    gates: TaskIds = ()
    percent: float | None = None

    @property
    def items(self) -> tuple[str, ...]:
        """What it is mapped over; one empty name for a task that is done once."""
        return self.lane.items if self.lane else ("",)

    def subject(self, item: str) -> str:
        """Subject of the stage for one item: `cpu`, or `cpu:25` for a step of a canary."""
        return item if self.percent is None else canary_subject(item, self.percent)


@dataclass(frozen=True)
class Instance:
    """One task for one item."""

    task: Task
    item: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from the others: id of the task, and the item."""
        return self.task.id, self.item

    @property
    def subject(self) -> str:
        """Subject of its stage."""
        return self.task.subject(self.item)


def canary_subject(target: str, percent: float) -> str:
    """Subject of one canary step, e.g. `cpu:25`."""
    return f"{target}:{percent:g}"


def release_tasks(release: ResolvedRelease, recipes: Sequence[str]) -> tuple[Task, ...]:
    """The tasks of a release, each behind all that it comes after.

    Args:
        release: The release config.
        recipes: Names of its recipes, in the order in which they are tried.

    Raises:
        ConfigError: A step that a package adds does not fit in.
    """
    tasks: list[Task] = []
    for group, members in groupby(release_flow(), key=lambda step: step.group):
        steps = tuple(members)
        for lane in _lanes(group, release, recipes) if group else (None,):
            for step, percent in _with_percents(steps, release):
                tasks.append(_task(step, percent, lane, tasks))
    return tuple(tasks)


def instances(tasks: Iterable[Task]) -> Iterator[Instance]:
    """In the order in which one machine runs them: of a lane, one item with all its steps after the other."""
    for lane, members in groupby(tasks, key=lambda task: task.lane):
        own = tuple(members)
        for item in lane.items if lane else ("",):
            yield from (Instance(task, item) for task in own)


def well_gone_steps(release: ResolvedRelease, recipes: Sequence[str]) -> Iterator[tuple[Step, str]]:
    """Each step with its subject, of a release that goes well, in the order in which one machine runs them.

    Of the recipes it has all; on a ladder that is climbed, those behind one that passed everywhere are left out.
    """
    for instance in instances(release_tasks(release, recipes)):
        step = instance.task.step
        if step.kind is not Kind.CLAIM and step.planned(release, instance.task.percent) and not step.unless:
            yield step, instance.subject


def _lanes(group: Group, release: ResolvedRelease, recipes: Sequence[str]) -> Iterator[Lane]:
    """One for all items of a group, or one for each where they come in turn; of candidates, for all targets at once."""
    if group.over is Scope.CANDIDATE:
        for number, items in enumerate(candidates(release, recipes), start=1):
            title = f"{group.one} {Candidate.of(items[0]).in_words}"
            yield Lane(f"{group.name}_{number}", title, group, items, number)
        return
    items = tuple(recipes) if group.over is Scope.RECIPE else tuple(target.name for target in release.targets)
    if group.in_turn is None or group.side_by_side(release):
        yield Lane(group.name, group.title, group, items)
        return
    for number, item in enumerate(items, start=1):
        yield Lane(f"{group.name}_{number}", f"{group.one} {item}", group, (item,), number)


def _with_percents(steps: tuple[Step, ...], release: ResolvedRelease) -> Iterator[tuple[Step, float | None]]:
    """The steps that this release has; those of a canary step again for each percentage."""
    for scope, members in groupby(steps, key=lambda step: step.scope):
        own = tuple(members)
        for percent in release.policy.canary.steps_percent if scope is Scope.CANARY_STEP else (None,):
            yield from ((step, percent) for step in own if step.when(release, percent))


def _task(step: Step, percent: float | None, lane: Lane | None, before: Sequence[Task]) -> Task:
    """One step at its place behind the tasks that are placed already."""
    name, title = step.task or step.name, step.title
    if percent is not None:
        name, title = f"{name}_{percent:g}".replace(".", "_"), f"{title} {percent:g} %"
    own = [task for task in before if lane is not None and task.lane == lane]
    turn = lane.group.in_turn if lane and lane.number > 1 else None  # of every item but the first
    moves = percent is not None  # each looks itself whether the item's turn has come, also when it is cleared
    needs, start = step.needs, step.start
    if turn and not own:  # what the lane before ended with, however it ended
        after, start = _ids(turn.after, before[-1].lane, before), Start.ALWAYS
    elif moves and own and own[-1].percent is not None:  # the canary's steps come one after the other
        after = (own[-1].id,)
    else:
        after = _ids(step.after, lane, before)
    if turn and (moves or not own):
        needs = (*turn.needs, *needs)
    question = lane.group.offered_by if lane and moves else ""
    return Task(
        id=f"{lane.id}.{name}" if lane else name,
        title=title,
        step=step,
        after=after,
        start=start,
        lane=lane,
        percent=percent,
        needs=tuple(TaskNeed(_ids((need.step,), lane, before), need.otherwise) for need in needs),
        offered=next((task.gates for task in before if task.step.name == question), ()),
        stopped_by=tuple(_promoted_before(lane, before)) if lane and moves else (),
        useless_without=_ids(step.useless_without, lane, before),
        tears_down=_ids(step.tears_down, lane, before, every_percent=True),
        unless=_ids((step.unless,) if step.unless else (), lane, before),
        gates=_last_of_targets(after, before) if step.kind is Kind.QUESTION and lane is None else (),
    )


def _ids(names: Iterable[str], lane: Lane | None, before: Sequence[Task], *, every_percent: bool = False) -> TaskIds:
    """Ids of the tasks of some steps: those of the lane where it has any, else those of all lanes.

    Of a canary's steps, the last one of each lane. Instead of a step that the release leaves out, those before it.
    """
    found: list[str] = []
    for name in names:
        tasks = [task for task in before if task.step.name == name]
        if not tasks:
            left_out = next(step for step in release_flow() if step.name == name)
            found += _ids(left_out.after, lane, before)
            continue
        tasks = [task for task in tasks if lane is not None and task.lane == lane] or tasks
        last = {(task.id if every_percent else task.lane and task.lane.id): task.id for task in tasks}
        found += last.values()
    return tuple(dict.fromkeys(found))


def _last_of_targets(task_ids: TaskIds, before: Sequence[Task]) -> TaskIds:
    """The nearest tasks, upstream of some, that work on targets: whatever passed those is offered."""
    found: list[str] = []
    for task in before:
        if task.id in task_ids:
            on_target = task.lane is not None and task.lane.group.over is Scope.TARGET
            found += [task.id] if on_target else _last_of_targets(task.after, before)
    return tuple(dict.fromkeys(found))


def _promoted_before(lane: Lane, before: Sequence[Task]) -> Iterator[tuple[str, str]]:
    """Of each item before this lane's, the item and the task that stops those behind it."""
    turn = lane.group.in_turn
    for task in before:
        if turn and task.step.name == turn.stopped_by and task.lane and task.lane != lane:
            yield task.lane.items[0], task.id
