"""Which tasks start, by how those before them ended. Pure: Airflow's trigger rules and the run without Airflow obey it.

    endings = Endings(tasks)
    for instance in instances(tasks):
        if (ending := unstarted(instance, endings)) is not None:
            endings.end(instance, ending)
        else:
            endings.start(instance)
            endings.end(instance, work(instance))

Ask about an instance once everything that it comes after has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from llm_pipeline.release.step import Effect, Ending, Kind, Start
from llm_pipeline.release.tasks import Instance, Task

Key = tuple[str, str]

_BAD = (Ending.FAILED, Ending.NOT_REACHED)


class Endings:
    """How the instances of a release ended so far.

    Args:
        tasks: All tasks of the release.

    Attributes:
        refused: The items that the person who approved the others refused.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._tasks = {task.id: task for task in tasks}
        self._ended: dict[Key, Ending] = {}
        self._started: set[Key] = set()
        self.refused: frozenset[str] = frozenset()

    def start(self, instance: Instance) -> None:
        """An instance begins; until it ends well it counts as failed, for it may be killed."""
        self._started.add(instance.key)
        self.end(instance, Ending.FAILED)

    def end(self, instance: Instance, ending: Ending) -> None:
        """An instance has ended, or ends without having been started."""
        self._ended[instance.key] = ending

    def started(self, task_id: str, item: str) -> bool:
        """Whether an instance was started."""
        return (task_id, item) in self._started

    def __contains__(self, instance: Instance) -> bool:
        return instance.key in self._ended

    def of(self, instance: Instance, task_ids: Iterable[str]) -> list[Ending]:
        """How tasks ended: in the instance's own lane for its item, elsewhere for all items."""
        found = []
        for task in map(self._tasks.__getitem__, task_ids):
            same = instance.task.lane is not None and task.lane == instance.task.lane
            found += [self.one(task.id, item) for item in ((instance.item,) if same else task.items)]
        return found

    def one(self, task_id: str, item: str) -> Ending:
        """How one instance ended; what never ended was not reached."""
        return self._ended.get((task_id, item), Ending.NOT_REACHED)

    def fails(self, task_ids: Collection[str]) -> bool:
        """Whether one of some tasks is known not to have ended well."""
        return any(key[0] in task_ids and ending is not Ending.GOOD for key, ending in self._ended.items())

    def well(self, task_ids: Iterable[str], item: str) -> bool:
        """Whether tasks of other lanes ended well for an item."""
        return all(self.one(task_id, item) is Ending.GOOD for task_id in task_ids)


def unstarted(instance: Instance, endings: Endings) -> Ending | None:
    """How an instance ends without being started; None when it is to start.

    Args:
        instance: What everything before it has ended.
        endings: How that ended.
    """
    task, before = instance.task, endings.of(instance, instance.task.after)
    if task.step.kind is Kind.CLAIM:
        return None
    if not task.step.decides:
        return _clearing_up(instance, endings)
    if (ending := _by_rule(task.start, before) or _by_needs(instance, endings)) is not None:
        return ending
    return Ending.SKIPPED if endings.fails(task.useless_without) else _by_turn(instance, endings)


def _by_rule(start: Start, before: list[Ending]) -> Ending | None:
    if start is Start.ALWAYS:
        return None
    if start is Start.ANY_GOOD:
        if Ending.GOOD in before:
            return None
        return Ending.FAILED if any(ending in _BAD for ending in before) else Ending.SKIPPED
    if any(ending in _BAD for ending in before):
        return Ending.NOT_REACHED
    return Ending.SKIPPED if Ending.SKIPPED in before else None


def _by_needs(instance: Instance, endings: Endings) -> Ending | None:
    for need in instance.task.needs:
        missing = {ending for ending in endings.of(instance, need.tasks) if ending is not Ending.GOOD}
        if missing:  # nothing failed where all is skipped
            return Ending.SKIPPED if missing == {Ending.SKIPPED} else need.otherwise
    return None


def _by_turn(instance: Instance, endings: Endings) -> Ending | None:
    """Fail an item that did not pass its own gates; skip it if a person refused it, or one before was not promoted."""
    task = instance.task
    if not endings.well(task.offered, instance.item):
        return Ending.FAILED
    if task.offered and instance.item in endings.refused:
        return Ending.SKIPPED
    for item, last in task.stopped_by:
        taken = endings.well(task.offered, item) and item not in endings.refused
        if taken and endings.one(last, item) is not Ending.GOOD:
            return Ending.SKIPPED
    return None


def _clearing_up(instance: Instance, endings: Endings) -> Ending | None:
    task = instance.task
    if task.unless and all(ending is Ending.GOOD for ending in endings.of(instance, task.unless)):
        return Ending.SKIPPED
    if not task.tears_down or any(endings.started(torn, instance.item) for torn in task.tears_down):
        return _by_needs(instance, endings)
    left_out = all(ending is Ending.SKIPPED for ending in endings.of(instance, task.tears_down))
    return Ending.SKIPPED if left_out or task.step.effect is Effect.PRODUCTION else Ending.NOT_REACHED


def run_fails(tasks: Iterable[Task], endings: Endings) -> Iterator[Key]:
    """Instances that fail a run: those behind which nothing but clearing up comes, and which were to end well."""
    deciding = [task for task in tasks if task.step.decides]
    followed = {task_id for task in deciding for task_id in task.after}
    for task in deciding:
        if task.id not in followed:
            yield from ((task.id, item) for item in task.items if endings.one(task.id, item) in _BAD)
