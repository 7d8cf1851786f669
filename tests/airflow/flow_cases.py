"""What can happen to a release of two recipes and two targets, and what the flow's rules make of it, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_pipeline.release.rules import Endings, unstarted
from llm_pipeline.release.step import Ending, Kind, Scope
from llm_pipeline.release.tasks import Instance, Task, instances

RECIPES, TARGETS = ("small", "large"), ("cpu-a", "cpu-b")
NO_GO, TERMINAL, TRANSIENT = {"verdict": "NO_GO"}, {"error": "terminal"}, {"error": "transient"}


@dataclass(frozen=True)
class Case:
    """How stages end otherwise than well, as `Project.script` takes it, and the questions that are declined."""

    stages: Mapping[str, dict] = field(default_factory=dict)
    declined: tuple[str, ...] = ()

    def ending(self, instance: Instance) -> Ending:
        """How an instance ends that was started."""
        step = instance.task.step
        if step.kind is Kind.QUESTION:
            return Ending.FAILED if step.name in self.declined else Ending.GOOD
        plan = self.stages.get(f"{step.name}/{instance.subject}".rstrip("/"), {})
        fails = plan.get("verdict", "GO") != "GO" or plan.get("error") == "terminal"
        return Ending.FAILED if fails else Ending.GOOD


@dataclass
class Walked:
    """A release that was walked by the rules."""

    endings: Endings
    started: list[tuple[str, str]]


def walk(tasks: tuple[Task, ...], case: Case) -> Walked:
    walked = Walked(Endings(tasks), [])
    for instance in instances(tasks):
        step, ending = instance.task.step, unstarted(instance, walked.endings)
        if ending is None and step.scope is Scope.RECIPE and _passed_over(walked.endings, instance):
            ending = Ending.SKIPPED
        if ending is not None:
            walked.endings.end(instance, ending)
            continue
        walked.endings.start(instance)
        chosen = step.name != "choose" or _passed(walked.endings)
        walked.endings.end(instance, case.ending(instance) if chosen else Ending.FAILED)
        if step.is_stage:
            walked.started.append((step.name, instance.subject))
    return walked


def _passed_over(endings: Endings, instance: Instance) -> bool:
    """Whether a cheaper recipe passed; all are legal on all targets."""
    return any(recipe in _passed(endings) for recipe in RECIPES[: RECIPES.index(instance.item)])


def _passed(endings: Endings) -> set[str]:
    found = endings._ended.items()
    return {item for (task, item), ending in found if task.endswith(".accuracy") and ending is Ending.GOOD}


GATES_OF_TARGET = ("staging", "served_accuracy", "load_test")
CANARY_STEPS = ("cpu-a:5", "cpu-a:100", "cpu-b:5", "cpu-b:100")
CASES: dict[str, Case] = {
    "all well": Case(),
    **{f"{gate} refuses {target}": Case({f"{gate}/{target}": NO_GO}) for gate in GATES_OF_TARGET for target in TARGETS},
    **{f"canary {step} refused": Case({f"canary/{step}": NO_GO}) for step in CANARY_STEPS},
    "baseline refused": Case({"baseline_gate": NO_GO}),
    "small refused": Case({"accuracy/small": NO_GO}),
    "both refused": Case({"accuracy/small": NO_GO, "accuracy/large": NO_GO}),
    "small cannot be quantized": Case({"quantize/small": TERMINAL}),
    "none can be quantized": Case({"quantize/small": TERMINAL, "quantize/large": TERMINAL}),
    "production declined": Case(declined=("approve",)),
    "one target refused and the other declined": Case({"load_test/cpu-a": NO_GO}, declined=("approve",)),
    "error in eval_data": Case({"eval_data": TERMINAL}),
    "error in download": Case({"download": TERMINAL}),
    "error in baseline": Case({"baseline": TERMINAL}),
    "error in build": Case({"build/cpu-a": TERMINAL}),
    "error in package": Case({"package/cpu-b": TERMINAL}),
    "error in staging": Case({"staging/cpu-a": TERMINAL}),
    "error in staging_down": Case({"staging_down/cpu-a": TERMINAL}),
    "error in canary": Case({"canary/cpu-a:100": TERMINAL}),
    "error in settle": Case({"settle/cpu-a": TERMINAL}),
    "error in rollback": Case({"canary/cpu-a:5": NO_GO, "rollback/cpu-a": TERMINAL}),
    "error in report": Case({"report": TERMINAL}),
    "transient errors": Case({"download": TRANSIENT, "build/cpu-b": TRANSIENT}),
    "one target refused and the other's canary": Case({"staging/cpu-a": NO_GO, "canary/cpu-b:100": NO_GO}),
    "no target is left": Case({"load_test/cpu-a": NO_GO, "build/cpu-b": TERMINAL}),
}  # fmt: skip
