"""What the UI says about a release's DAG."""

from __future__ import annotations

from llm_pipeline.config.loading import LoadedRelease
from llm_pipeline.config.release import ReleaseConfig
from llm_pipeline.planning.ladder import climbing_order

_TURNS = {
    "wait": "this one waits until earlier ones have ended",
    "supersede": "an older one stops at its next stage and takes down what it started; then this one begins",
}

_LADDERS = {
    "climb": "Recipes are tried from the top; one is skipped if a cheaper one has passed.",
    "every": "All recipes are tried; of those that pass, the one nearest to the top is taken.",
}


def dag_doc(loaded: LoadedRelease) -> str:
    """The documentation of a release's DAG, in Markdown."""
    config, release = loaded.config, loaded.release
    ladder = [release.recipe(name) for name in climbing_order(release)]
    recipes = "\n".join(f"| `{recipe.name}` | {recipe.weights} | {recipe.description} |" for recipe in ladder)
    targets = "\n".join(f"| `{target.name}` | {target.accelerator} | {target.engine} |" for target in release.targets)
    turn = _TURNS[config.concurrency]
    steps = ", ".join(f"{percent:g} %" for percent in release.policy.canary.steps_percent)
    return f"""### Release {config.name}

{config.description}

Model **{config.model.id}** at `{config.model.revision}`, policy `{config.policy}`, deployment `{config.deployment}`.

| recipe | weights | |
|---|---|---|
{recipes}

{_LADDERS[release.ladder.strategy]}

| target | accelerator | engine |
|---|---|---|
{targets}

{_starts(config)}
Canary steps: {steps}. Every gate ends in GO, NO_GO, INCONCLUSIVE or ANOMALOUS; only GO continues.
One release of the model at a time: {turn}.
Finished work is kept: run the DAG again and stages whose inputs did not change say `reused`.
"""


def _starts(config: ReleaseConfig) -> str:
    """What starts a run besides a person."""
    text = ""
    if config.watch is not None:
        watch = config.watch
        text += (
            f"A new commit on `{config.model.revision}` starts a run that releases exactly that commit. The watch "
            f"polls every {watch.poll_minutes:g} minutes and at the hub's webhook, waits until no commit followed for "
            f"{watch.quiet_minutes:g} minutes, and starts at most {watch.rebuilds_per_day} releases in 24 hours. "
            "The page Releases shows its last decision.\n"
        )
    if config.schedule is not None:
        text += (
            f"`{config.schedule}` (UTC) starts a run too; it is skipped if production already serves that content.\n"
        )
    return text
