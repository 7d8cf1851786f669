"""Whether a release's budget can be compared with its plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.planning.reuse import Step
from llm_pipeline.planning.stage_cost import StepCost

if TYPE_CHECKING:
    from llm_pipeline.release.loading import LoadedRelease


def check_budget(loaded: LoadedRelease, costs: Mapping[Step, StepCost]) -> None:
    """Make sure that a budget can be compared with the plan.

    Raises:
        ConfigError: It limits the cost, and a GPU has no price.
    """
    needed = {cost.accelerator for cost in costs.values() if cost.gpus and cost.accelerator}
    if loaded.config.budget.cost is not None and (free := sorted(needed - loaded.deployment.gpu_hour_prices.keys())):
        name = loaded.deployment.name
        raise ConfigError(
            f"budget.cost: what {', '.join(free)} costs is not known in deployment {name}",
            where=str(loaded.path),
            hint=f"add it to gpu_hour_prices of deployments/{name}.yaml, or limit budget.hours instead",
        )
