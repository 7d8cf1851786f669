"""What is stated of one step of a release. Data only: every process that reads it imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm_pipeline.config.release import ResolvedRelease

Condition = Callable[["ResolvedRelease", float | None], bool]
"""Of the release config, and of a canary step's percentage for a step that works on one."""


class Scope(StrEnum):
    """What a step works on: its subject."""

    RELEASE = "release"
    RECIPE = "recipe"
    TARGET = "target"
    CANDIDATE = "candidate"
    """A recipe on a target, in one of its variants."""
    CANARY_STEP = "canary step"


class Kind(StrEnum):
    """Who does the work."""

    STAGE = "stage"
    QUESTION = "question"
    CLAIM = "claim"
    """Takes the release's turn among those of its model, or gives it back."""


class Start(StrEnum):
    """The rule by which a step starts, once everything that it comes after has ended."""

    ALL_GOOD = "all good"
    ANY_GOOD = "any good"
    ALWAYS = "always"


class Ending(StrEnum):
    """How a step ended."""

    GOOD = "good"
    FAILED = "failed"
    SKIPPED = "skipped"
    NOT_REACHED = "not reached"


class Effect(StrEnum):
    """What a step changes besides the store's artifacts."""

    NONE = "nothing"
    """It only computes: its result is reused wherever its inputs are the same."""
    RECORD = "the release's record"
    STAGING = "staging servers"
    PRODUCTION = "production"


class Machine(StrEnum):
    """Which machine a step needs: it decides the queue and the pool of its task."""

    ANYWHERE = "anywhere"
    QUANTIZATION_HOST = "quantization host"
    TARGET_HOST = "target's host"


class Gpus(StrEnum):
    """What a step does with the GPUs of its place."""

    NONE = "none"
    TAKEN = "takes them"
    HELD = "keeps them busy"
    """Its servers hold them, so that its task waits for no free slot: traffic must be given back also when none is."""


class Environment(StrEnum):
    """Which interpreter, container or pod runs a stage."""

    CONTROL = "control"
    MODEL = "model"
    OF_TARGET = "the target's"


class Work(StrEnum):
    """What a step's time goes into: the plan predicts by it, and time limits are set by it."""

    SHORT = "seconds"
    DOWNLOAD = "bytes to fetch"
    SCORING = "items to score"
    COMPARISON = "items to score until decided"
    QUANTIZATION = "weights and calibration"
    BUILD = "engine to build"
    SERVER_START = "server to start"
    SERVED_SCORING = "answers to generate"
    LOAD = "workload to send"
    BAKE = "live traffic to watch"
    PERSON = "a person's answer"


@dataclass(frozen=True)
class Need:
    """A step that must have ended well, though the start rule would let this one run.

    Attributes:
        step: Name of the other step.
        otherwise: How this one ends without it.
    """

    step: str
    otherwise: Ending


@dataclass(frozen=True)
class InTurn:
    """How the items of a group follow one another.

    Attributes:
        after: What the first step of every item but the first comes after. Steps of the group itself are those of the
            item before; that step starts when they have ended, well or not.
        needs: What must have ended well nevertheless.
        stopped_by: A step of the group which must have ended well for every earlier item that was offered; "" for none.
    """

    after: tuple[str, ...]
    needs: tuple[Need, ...]
    stopped_by: str = ""


@dataclass(frozen=True)
class Group:
    """Steps that are done for each recipe, or for each target.

    Attributes:
        name: Id of the task group; with a number behind it where the items come in turn.
        title: Of the whole group.
        one: Title of one item's part.
        words: What it is for.
        over: What the items are.
        in_turn: How they follow one another; None for side by side.
        side_by_side: A release for which they are side by side nevertheless.
        offered_by: A step: an item takes part only if everything that this step waits for ended well for the item
            itself. An approval that other targets were given is none of its own. "" for no such step.
    """

    name: str
    title: str
    one: str
    words: str
    over: Scope
    in_turn: InTurn | None = None
    side_by_side: Callable[[ResolvedRelease], bool] = lambda _release: False
    offered_by: str = ""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of a release.

    Attributes:
        name: Name of the step.
        title: Display name of its task.
        words: What it does, for people.
        scope: What it works on.
        group: The group it belongs to; None for a step that is done once.
        kind: Who does the work.
        after: Steps that must have ended first. Of a step that a release leaves out, those before it count.
        before: Steps that wait for this one, too: for a step that is added to a flow.
        start: Whether it starts, by how the steps before it ended.
        needs: Steps that must have ended well besides.
        useless_without: Steps that it does not wait for, but without which nothing comes of it: it is skipped when one
            of them has failed by then.
        ends: What a verdict other than GO ends; None for a step that is no gate.
        tears_down: Steps whose servers or traffic it takes back: it runs if one of them was started.
        decides: Whether the release fails with it. What clears up decides nothing, and always runs.
        unless: A step after whose success nothing is left to do for this one.
        effect: What it changes in the world.
        machine: Which machine it needs.
        gpus: What it does with that machine's GPUs.
        heavy: As many at once as the deployment allows (`computing_at_once`).
        environment: Where its process runs.
        work: What its time goes into.
        when: Whether a release has it at all.
        planned: Whether the plan lists it; not a question that is put only when something is unusual.
        module: Module that holds the stage's `STAGE`; by default that of the same name in `llm_pipeline.stages`.
        stage: Name of a stage that another step has as well; by default the step's own.
        task: Name of its task; by default the step's.
    """

    name: str
    title: str
    words: str
    scope: Scope = Scope.RELEASE
    group: Group | None = None
    kind: Kind = Kind.STAGE
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    start: Start = Start.ALL_GOOD
    needs: tuple[Need, ...] = ()
    useless_without: tuple[str, ...] = ()
    ends: Scope | None = None
    tears_down: tuple[str, ...] = ()
    decides: bool = True
    unless: str = ""
    effect: Effect = Effect.NONE
    machine: Machine = Machine.ANYWHERE
    gpus: Gpus = Gpus.NONE
    heavy: bool = False
    environment: Environment = Environment.CONTROL
    work: Work = Work.SHORT
    when: Condition = lambda _release, _percent: True
    planned: Condition = lambda _release, _percent: True
    module: str = ""
    stage: str = ""
    task: str = ""

    @property
    def stage_name(self) -> str:
        """Name of its stage, and of its results."""
        return self.stage or self.name

    @property
    def is_attempt(self) -> bool:
        """Whether it works on one of several that may fail, as long as another one does not."""
        return self.scope in (Scope.RECIPE, Scope.CANDIDATE)

    @property
    def is_stage(self) -> bool:
        """Whether a stage's process does the work."""
        return self.kind is Kind.STAGE

    @property
    def reusable(self) -> bool:
        """Whether its result is taken from the store when its inputs are the same: a stage that only computes."""
        return self.is_stage and self.effect is Effect.NONE
