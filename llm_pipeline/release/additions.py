"""Steps that are added to a flow: where they go, and what waits for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.release.step import Ending, Group, Need, Step


def with_steps(flow: tuple[Step, ...], added: Iterable[Step]) -> tuple[Step, ...]:
    """A flow with further steps, each behind the last one that it comes after.

    Raises:
        ConfigError: A step's name is taken, or it names one that the flow does not have.
    """
    for step in added:
        place = _checked_place(flow, step)
        waiting = tuple(_behind(one, step) if one.name in step.before else one for one in flow)
        groups = {name: _entered_behind(group, step) for name, group in _groups_before(flow, step).items()}
        regrouped = (
            replace(one, group=groups[one.group.name]) if one.group and one.group.name in groups else one
            for one in (*waiting[:place], step, *waiting[place:])
        )
        flow = tuple(regrouped)
    return flow


def _checked_place(flow: tuple[Step, ...], added: Step) -> int:
    names = [one.name for one in flow]
    if added.name in names:
        raise ConfigError(f"step {added.name!r} is in the flow already", hint="give the added step another name")
    if unknown := [name for name in (*added.after, *added.before) if name not in names]:
        missing = f"step {added.name!r} names unknown steps: {', '.join(unknown)}"
        raise ConfigError(missing, hint=f"steps are: {', '.join(names)}")
    if not added.after:
        raise ConfigError(f"step {added.name!r} comes after no step", hint="name a step in `after`")
    _check_turns(flow, added)
    place = _place(flow, added)
    if early := [name for name in added.before if names.index(name) < place]:
        raise ConfigError(f"step {added.name!r} is to come before {', '.join(early)}, and after a later one")
    return place


def _check_turns(flow: tuple[Step, ...], added: Step) -> None:
    """Refuse what Airflow's tasks could not look at before they start."""
    by_name = {one.name: one for one in flow}
    if grouped := [need.step for need in added.needs if by_name.get(need.step, added).group is not None]:
        raise ConfigError(
            f"step {added.name!r} needs {', '.join(grouped)}, which is done for several recipes or targets",
            hint="name them in `after`; `needs` is for steps that are done once",
        )
    own = [by_name[name] for name in added.after if by_name[name].group == added.group]
    if added.group is not None and added.group.in_turn and not any(one.is_stage for one in own):
        raise ConfigError(
            f"step {added.name!r} would be the first of {added.group.name}, which looks whose turn it is",
            hint="name a stage of that group in `after`",
        )


def _place(flow: tuple[Step, ...], added: Step) -> int:
    """Where a step goes: inside its own group, and not inside another one."""
    place = 1 + max(number for number, one in enumerate(flow) if one.name in added.after)
    own = [number for number, one in enumerate(flow) if added.group is not None and one.group == added.group]
    if own:
        return max(place, own[0])
    while place < len(flow) and flow[place].group is not None and flow[place].group == flow[place - 1].group:
        place += 1
    return place


def _behind(waiting: Step, added: Step) -> Step:
    """A step that waits for an added one instead of what that one waits for itself."""
    kept = tuple(name for name in waiting.after if name not in added.after)
    return replace(waiting, after=(*kept, added.name))


def _groups_before(flow: tuple[Step, ...], added: Step) -> dict[str, Group]:
    """Groups that a step from outside stands before, and whose items come in turn: each of them waits for it."""
    groups = {one.group.name: one.group for one in flow if one.group and one.name in added.before}
    return {name: group for name, group in groups.items() if group.in_turn and group != added.group}


def _entered_behind(group: Group, added: Step) -> Group:
    """The group, whose later items need the added step as they need what it comes after."""
    if group.in_turn is None:
        return group
    after = tuple(name for name in group.in_turn.after if name not in added.after)
    needs = (*group.in_turn.needs, Need(added.name, Ending.SKIPPED))
    return replace(group, in_turn=replace(group.in_turn, after=(*after, added.name), needs=needs))
