"""The tasks that the flow comes to for one release config: what each works on, and what it comes after.

    tasks = release_tasks(release, recipes)
    [task.id for task in tasks]  # ["claim", "resolve", ..., "recipes_1.quantize", ..., "targets.build", ...]

A task is what Airflow draws: mapped over the items of its lane. Its instances are what one machine runs one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from llm_pipeline.release.flow import release_flow
from llm_pipeline.release.step import Ending, Group, InTurn, Kind, Need, Scope, Start, Step

if TYPE_CHECKING:
    from llm_pipeline.config.release import ResolvedRelease

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
        gates: Of a question that is asked once, the last tasks of the targets that it may be about.
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
    layout = _Layout(release, recipes)
    for group, steps in groupby(release_flow(), key=lambda step: step.group):
        layout.add(group, tuple(steps))
    return layout.tasks


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
        asks = step.kind is not Kind.QUESTION or step.asked(release, instance.task.percent)
        if step.kind is not Kind.CLAIM and asks and step.planned and not step.unless:
            yield step, instance.subject


class _Layout:
    """Places the steps of one release after another."""

    def __init__(self, release: ResolvedRelease, recipes: Sequence[str]) -> None:
        self._by_id: dict[str, Task] = {}
        self._ended: dict[str, frozenset[str]] = {}
        """By a task: what has ended whenever it has."""
        self._well: dict[str, frozenset[str]] = {}
        """By a task: what ended well whenever it did."""
        self._release = release
        self._recipes = tuple(recipes)
        self._steps = {step.name: step for step in release_flow()}

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Those placed so far, in order."""
        return tuple(self._by_id.values())

    def add(self, group: Group | None, steps: tuple[Step, ...]) -> None:
        """Place the steps of one group, in each of its lanes; or steps that belong to none."""
        for lane in self._lanes(group) if group else (None,):
            for step, percent in self._of_lane(lane, steps):
                self._place(self._task(step, lane, percent))

    def _place(self, task: Task) -> None:
        """Add a task behind what it comes after, less what stands behind another of these anyway.

        What is left out has ended whenever the other has; for a task that starts only if all went well, it went well
        whenever the other did. Questions stay: a no skips what comes directly after.
        """
        asked = {name for name in task.after if self._by_id[name].step.kind is Kind.QUESTION}
        always, all_good = task.start is Start.ALWAYS or not task.step.decides, task.start is Start.ALL_GOOD
        implied = self._ended if always else self._well if all_good else {}
        left_out = {name for other in task.after for name in implied.get(other, frozenset()) & self._ended[other]}
        after = tuple(name for name in task.after if name in asked or name not in left_out)
        ended = [self._ended[name] | {name} for name in after] or [frozenset()]
        early = asked or not (always or task.start is Start.ANY_GOOD)  # it may end when one of them has
        self._ended[task.id] = (frozenset.intersection if early else frozenset.union)(*ended)
        well = {name for need in task.needs for name in need.tasks}.union(() if always or not all_good else after)
        self._well[task.id] = frozenset(well.union(*(self._well[name] for name in well)))
        self._by_id[task.id] = replace(task, after=after)

    def _lanes(self, group: Group) -> Iterator[Lane]:
        targets = tuple(target.name for target in self._release.targets)
        items = self._recipes if group.over is Scope.RECIPE else targets
        if group.in_turn is None or group.side_by_side(self._release):
            yield Lane(group.name, group.title, group, items)
            return
        for number, item in enumerate(items, start=1):
            yield Lane(f"{group.name}_{number}", f"{group.one} {item}", group, (item,), number)

    def _of_lane(self, lane: Lane | None, steps: tuple[Step, ...]) -> Iterator[tuple[Step, float | None]]:
        """The steps that this release has; those of a canary step again for each percentage."""
        for scope, members in groupby(steps, key=lambda step: step.scope):
            own = tuple(members)
            percents = self._release.policy.canary.steps_percent if lane and scope is Scope.CANARY_STEP else (None,)
            for percent in percents:
                yield from ((step, percent) for step in own if step.when(self._release, percent))

    def _task(self, step: Step, lane: Lane | None, percent: float | None) -> Task:
        name, title = step.task or step.name, step.title
        if percent is not None:
            name, title = f"{name}_{percent:g}".replace(".", "_"), f"{title} {percent:g} %"
        turn = lane.group.in_turn if lane and lane.number > 1 else None
        enters = turn is not None and not self._members(lane)
        moves = step.scope is Scope.CANARY_STEP  # each looks itself whether the item's turn has come, also when cleared
        after = self._after_turn(turn) if turn and enters else self._after(step, lane, percent)
        return Task(
            id=f"{lane.id}.{name}" if lane else name,
            title=title,
            step=step,
            after=after,
            start=Start.ALWAYS if enters else step.start,
            lane=lane,
            percent=percent,
            needs=tuple(self._needs((*(turn.needs if turn and (enters or moves) else ()), *step.needs), lane)),
            offered=self._offered(lane) if moves else (),
            gates=self._judged(after, Scope.TARGET) if lane is None and step.kind is Kind.QUESTION else (),
            stopped_by=tuple(self._earlier(lane)) if moves else (),
            useless_without=tuple(task.id for task in self._named(step.useless_without, lane)),
            tears_down=tuple(task.id for task in self._named(step.tears_down, lane)),
            unless=tuple(task.id for task in self._named((step.unless,), lane)),
        )

    def _members(self, lane: Lane | None) -> list[Task]:
        return [task for task in self.tasks if lane is not None and task.lane == lane]

    def _after(self, step: Step, lane: Lane | None, percent: float | None) -> TaskIds:
        """What a task comes after; those of a canary step come one after the other."""
        before = self._members(lane)
        if percent is not None and before and before[-1].percent is not None:
            return (before[-1].id,)
        return self._last(self._present(step.after), lane)

    def _after_turn(self, turn: InTurn) -> TaskIds:
        """What the first task of a lane comes after, when another lane is before it."""
        previous = next(task.lane for task in reversed(self.tasks) if task.lane)
        return self._last(self._present(turn.after), previous)

    def _present(self, names: Iterable[str]) -> Iterator[str]:
        """Names of steps that the release has; for one that it leaves out, those which that one comes after."""
        there = {task.step.name for task in self.tasks}
        for name in names:
            yield from (name,) if name in there else self._present(self._steps[name].after)

    def _named(self, names: Iterable[str], lane: Lane | None) -> list[Task]:
        """Tasks of some steps: those of the lane where it has any, else those of all lanes."""
        chosen: list[Task] = []
        for name in names:
            found = [task for task in self.tasks if task.step.name == name]
            chosen += [task for task in found if lane is not None and task.lane == lane] or found
        return chosen

    def _last(self, names: Iterable[str], lane: Lane | None) -> TaskIds:
        """Ids of those tasks; of a canary's steps, that of the last one in each lane."""
        last = {(task.step.name, task.lane.id if task.lane else ""): task.id for task in self._named(names, lane)}
        return tuple(dict.fromkeys(last.values()))

    def _needs(self, needs: Iterable[Need], lane: Lane | None) -> Iterator[TaskNeed]:
        for need in needs:
            yield TaskNeed(tuple(task.id for task in self._named((need.step,), lane)), need.otherwise)

    def _offered(self, lane: Lane | None) -> TaskIds:
        """The last gates of an item before the question whose answer may be about others only."""
        question = self._named((lane.group.offered_by,), None) if lane else []
        return self._judged(question[0].after, lane.group.over) if lane and question else ()

    def _judged(self, task_ids: TaskIds, over: Scope) -> TaskIds:
        """The nearest tasks, upstream, that work on such items."""
        found: list[str] = []
        for task in self.tasks:
            if task.id in task_ids:
                same = task.lane is not None and task.lane.group.over is over
                found += [task.id] if same else self._judged(task.after, over)
        return tuple(dict.fromkeys(found))

    def _earlier(self, lane: Lane | None) -> Iterator[tuple[str, str]]:
        """Of each item before this lane's, the item and the task that stops those behind it."""
        turn = lane.group.in_turn if lane else None
        for task in self.tasks:
            if turn and task.step.name == turn.stopped_by and task.lane and task.lane != lane:
                yield task.lane.items[0], task.id
