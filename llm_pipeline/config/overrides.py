"""What one run of a release changes of its config, without a change of the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.model import ConfigModel, Names, PositiveHours, Revision
from llm_pipeline.config.release import Amount, Budget, LadderStrategy, ReleaseConfig


class Overrides(ConfigModel):
    """What a person asked for otherwise than the release config has it; None: as the config has it.

    Attributes:
        revision: Branch, tag or commit of the model.
        recipes: Those of the config's recipes that are tried.
        targets: Those of the config's targets that it is built for, and promoted on.
        strategy: Of the ladder.
        budget_hours: Planned time beyond which a person is asked.
        budget_cost: Planned price beyond which a person is asked, in the deployment's currency.
    """

    revision: Revision | None = None
    recipes: Names | None = None
    targets: Names | None = None
    strategy: LadderStrategy | None = None
    budget_hours: PositiveHours | None = None
    budget_cost: Amount | None = None

    @classmethod
    def of(cls, asked: Mapping[str, Any]) -> Overrides:
        """Out of a form's or a command's values; empty ones are left to the config, other names are not looked at.

        Raises:
            ConfigError: A value is none that any release could have.
        """
        given = {name: asked.get(name) for name in cls.model_fields}
        try:
            return cls.model_validate({name: None if value == "" else value for name, value in given.items()})
        except ValidationError as error:
            first = error.errors()[0]
            hint = "correct it where the run is started; nothing was started"
            raise ConfigError(f"{first['loc'][0]}: {first['msg']}", hint=hint) from error

    def effective(self, config: ReleaseConfig) -> Overrides:
        """What of it is otherwise than the config has it; names are in the config's order.

        Raises:
            ConfigError: The config does not have what is asked for.
        """
        return Overrides(
            revision=None if self.revision == config.model.revision else self.revision,
            recipes=_some_of("recipes", self.recipes, config),
            targets=_some_of("targets", self.targets, config),
            strategy=None if self.strategy == config.ladder.strategy else self.strategy,
            budget_hours=None if self.budget_hours == config.budget.hours else self.budget_hours,
            budget_cost=None if self.budget_cost == config.budget.cost else self.budget_cost,
        )

    def applied(self, config: ReleaseConfig) -> ReleaseConfig:
        """The config as this run has it. The revision is no part of it: the first stage pins it to a commit."""
        recipes, targets = self.recipes or config.recipes, self.targets or config.targets
        strategy, budget = self.strategy or config.ladder.strategy, config.budget
        hours = budget.hours if self.budget_hours is None else self.budget_hours
        cost = budget.cost if self.budget_cost is None else self.budget_cost
        return config.model_copy(
            update={
                "recipes": recipes,
                "targets": targets,
                "places": {target: place for target, place in config.places.items() if target in targets},
                "budget": Budget(hours=hours, cost=cost),
                "ladder": config.ladder.model_copy(update={"strategy": strategy}),
            }
        )

    def __bool__(self) -> bool:
        return any(True for _ in self._given())

    def __str__(self) -> str:
        """For people: `recipes fp8, int4_awq; targets h100`."""
        return "; ".join(f"{_LABELS.get(name, name)} {_text(value)}" for name, value in self._given())

    def _given(self) -> Iterator[tuple[str, Any]]:
        return ((name, value) for name, value in self if value is not None)


_LABELS = {"strategy": "ladder strategy", "budget_hours": "budget in hours", "budget_cost": "budget in money"}


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _some_of(key: str, asked: Sequence[str] | None, config: ReleaseConfig) -> tuple[str, ...] | None:
    if asked is None:
        return None
    known: tuple[str, ...] = getattr(config, key)
    unknown = [name for name in dict.fromkeys(asked) if name not in known]
    if unknown or not asked:
        problem = f"{', '.join(unknown)} is not among the {key}" if unknown else f"none is left of the {key}"
        hint = f"a run may have some of {', '.join(known)}; for others, change {key} in the release config"
        raise ConfigError(f"{key}: {problem} of release {config.name}", hint=hint)
    chosen = tuple(name for name in known if name in asked)
    return None if chosen == known else chosen
