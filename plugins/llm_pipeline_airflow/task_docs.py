"""What the UI says about a DAG and its tasks."""

from __future__ import annotations

from collections.abc import Mapping

from llm_pipeline.config.loading import LoadedRelease
from llm_pipeline.config.release import ReleaseConfig
from llm_pipeline.planning.ladder import climbing_order

TASK_DOCS: Mapping[str, tuple[str, str]] = {
    "claim": (
        "Wait for the turn",
        "Waits, without a worker, until no other release of the model is on its way, or takes an older one's place.",
    ),
    "resolve": (
        "Resolve",
        "Pins the revision to a commit, records the release and stores the data sets that its gates read.",
    ),
    "review_license": (
        "Licence review",
        "Asks a human when the model's licence or gating changed since the release before; else it goes on by itself.",
    ),
    "eval_data": (
        "Evaluation data",
        "Fetches the data sets that the evaluation tasks read, at pinned commits; the gates themselves work offline.",
    ),
    "download": ("Download", "Fetches the weights of that commit; every byte is checked against the hub's hashes."),
    "baseline": ("Baseline", "Scores the unquantized model: every candidate is compared with it, item by item."),
    "baseline_gate": (
        "Baseline gate",
        (
            "Judges the unquantized model by itself: its expected scores, and whether it does better than guessing. "
            "Another verdict than GO stops the release; the table in the log says why."
        ),
    ),
    "quantize": (
        "Quantize",
        "Quantizes with one recipe and exports a checkpoint. Skipped when a cheaper recipe passed; the log says which.",
    ),
    "accuracy": (
        "Accuracy gate",
        (
            "Compares the quantized model with the baseline, paired by item. Another verdict than GO stops this recipe "
            "only; the table in the log says why."
        ),
    ),
    "choose": ("Choose", "Picks the cheapest recipe that passed for this target. Fails when none did."),
    "build": ("Build", "Builds the engine for one target."),
    "package": ("Package", "Makes the model repository that the server loads, with golden answers beside it."),
    "staging": ("Staging", "Starts a server with the candidate and asks it the golden prompts."),
    "served_accuracy": ("Served accuracy gate", "Scores the served model: the engine may differ from the checkpoint."),
    "load_test": ("Load test gate", "Sends the workload at its scheduled times and judges the service level."),
    "staging_down": ("Stop staging", "Stops the staging server. Always runs."),
    "approve": ("Approve", "The decision before production. No answer in time is a rejection."),
    "canary": (
        "Canary",
        (
            "Moves this share of the traffic to the candidate and compares it with the stable version. "
            "A verdict other than GO ends the promotion; the rollback follows."
        ),
    ),
    "approve_step": (
        "Approve a step",
        (
            "The decision before a step, with what the one before it measured. No answer in time is a rejection: "
            "the promotion fails, and the rollback follows."
        ),
    ),
    "settle": ("Settle", "Makes the candidate the production version and keeps the previous one ready."),
    "rollback": (
        "Rollback",
        "Gives all traffic back to the stable version unless the release was promoted. Always runs once traffic moved.",
    ),
    "report": ("Report", "Writes the release's report: the tab beside this graph. Always runs."),
    "give_back": ("End the turn", "Lets the next release of the model begin. Always runs once the turn was taken."),
}
"""Display name and documentation by task."""


_TURNS = {
    "wait": "this one waits until those before it have ended",
    "supersede": "an older one stops at its next stage, takes down what it started, and this one begins",
}

_LADDERS = {
    "climb": "Recipes are tried from the top; one is passed over when a cheaper one has passed.",
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
Canary steps: {steps}. Every gate ends GO, NO_GO, INCONCLUSIVE or ANOMALOUS; only GO goes on.
One release of the model at a time: {turn}.
Finished work is kept: run the DAG again and stages whose inputs did not change say `reused`.
"""


def _starts(config: ReleaseConfig) -> str:
    """What starts a run besides a person."""
    text = ""
    if config.watch is not None:
        watch = config.watch
        text += (
            f"A new commit on `{config.model.revision}` starts a run that releases exactly it: looked for every "
            f"{watch.poll_minutes:g} minutes and at the hub's webhook, released when none followed it for "
            f"{watch.quiet_minutes:g} minutes, at most {watch.rebuilds_per_day} in 24 hours. "
            "The page Releases says what was decided last.\n"
        )
    if config.schedule is not None:
        text += f"`{config.schedule}` (UTC) starts a run too; it is skipped when production serves what is there.\n"
    return text
