"""The tags of our DAGs, by which Airflow's list is filtered: what they do, for which model, where, on which engine."""

from __future__ import annotations

from collections.abc import Iterable

_LONGEST = 100
"""Characters of a tag that Airflow's database holds."""


def dag_tags(
    kind: str, deployment: str, *, models: Iterable[str], targets: Iterable[str], engines: Iterable[str]
) -> list[str]:
    """The tags of one DAG, such as `llm-release`, `model:org/name`, `deployment:prod`, `target:h100`, `engine:vllm`.

    Args:
        kind: What the DAG does: `release`, `guard`, ...
        deployment: Name of its deployment.
        models: Ids of the models that it is about.
        targets: Names of targets or places.
        engines: The engines of those.
    """
    named = {"model": models, "deployment": [deployment], "target": targets, "engine": engines}
    tags = [f"llm-{kind}", *(f"{label}:{value}" for label, values in named.items() for value in values)]
    return list(dict.fromkeys(tag[:_LONGEST] for tag in tags))
