"""The form that starts a release by hand: what this one run may have otherwise than its config.

Its values are the run's parameters, whether they come from the form, the command line or the API. They are checked by
the run's first task, before it waits for its turn, and again by `resolve`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import Param

from llm_pipeline.config.release import ModelSource

if TYPE_CHECKING:
    from llm_pipeline.release.loading import LoadedRelease

_REVISION: str = ModelSource.model_json_schema()["properties"]["revision"]["pattern"]


def form_of(loaded: LoadedRelease) -> dict[str, Param]:
    """The fields of a release's form, by name."""
    config = loaded.config
    fields = {
        "revision": Param(
            None,
            type=["null", "string"],
            pattern=_REVISION,
            title="Revision",
            description=f"Branch, tag or commit of {config.model.id}; empty releases the config's own, "
            f"{config.model.revision}.",
        ),
        "recipes": _some(config.recipes, "Recipes", "Recipes to try, out of the config's."),
        "targets": _some(config.targets, "Targets", "Targets to build for and to promote on, out of the config's."),
        "strategy": Param(
            config.ladder.strategy,
            type="string",
            enum=["climb", "every"],
            values_display={"climb": "climb: until one passes", "every": "every: try all of them"},
            title="Ladder",
            description="Whether the next recipe is tried only when the cheaper one did not pass, or all are.",
        ),
        "budget_hours": _budget(config.budget.hours, "Budget, hours", "hours"),
        "budget_cost": _budget(config.budget.cost, "Budget, money", loaded.deployment.currency),
        "replace": Param(
            False,
            type="boolean",
            title="Replace",
            description=f"Take {', '.join(loaded.places.values())} over from the model that holds it: its users get "
            f"{config.model.id} once this release is promoted. Otherwise a release into another model's place is "
            "refused.",
        ),
        "dry_run": Param(
            False,
            type="boolean",
            title="Dry run",
            description="Only show the plan, in the log of the first task: what would be done, its time and cost.",
        ),
    }
    if config.ladder.strategy == "every":
        del fields["strategy"]  # see `started_run.overrides_of`
    return fields


def _some(known: tuple[str, ...], title: str, description: str) -> Param:
    """Names to choose from; the form shows a list with all of them chosen."""
    return Param(list(known), type="array", examples=list(known), title=title, description=description)


def _budget(configured: float | None, title: str, unit: str) -> Param:
    what = f"A person is asked if the plan takes more {unit} than this; empty for "
    what += "no limit." if configured is None else f"the config's {configured:g}."
    return Param(configured, type=["null", "number"], title=title, description=what)
