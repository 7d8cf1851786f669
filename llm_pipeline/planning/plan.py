"""The plan of a release: every check that needs no GPU, no network and no money.

    plan = plan_release(Path("configs/releases/demo.yaml"))
    sys.stdout.write(format_plan(plan))

What cannot work is an error before anything is spent; what is not known, or only looks wrong from this machine,
is a warning in the plan. The store is asked for what earlier releases left in it, for no longer than a moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path

from llm_pipeline.base.errors import Unsupported, refuse
from llm_pipeline.base.quantities import byte_size
from llm_pipeline.catalog.tables import find_gpu
from llm_pipeline.config.files import how_to_make_an_interpreter
from llm_pipeline.config.overrides import Overrides
from llm_pipeline.engines.builder import engine_adapter
from llm_pipeline.loadtest.duration import require_enough, sample_size
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning import host, release_checks
from llm_pipeline.planning.memory import PLAIN, climbing_order, weight_bytes
from llm_pipeline.planning.model import DiskPlan, Plan, expected_warnings, format_plan
from llm_pipeline.planning.sources import answer_of, ask_store, look_at_model
from llm_pipeline.planning.stage_cost import (
    check_budget,
    check_prices,
    planned_stage,
    planned_steps,
    predicted_seconds,
    total_cost,
)
from llm_pipeline.planning.target_plan import TargetPlan, plan_target
from llm_pipeline.planning.task_pool import (
    canary_warnings,
    check_tasks,
    gate_warnings,
    judge_task_placement,
    load_test_warnings,
    task_pool,
)
from llm_pipeline.release.loading import LoadedRelease, load_release
from llm_pipeline.serving.launch_plan import launch_mode

__all__ = ["Plan", "format_plan", "plan_release"]

_BUCKET_SECONDS, _DIRECTORY_SECONDS = 1.2, 10.0
"""How long a store may take to answer: a bucket may be far away or unreachable, a directory answers at once."""

_SHARE_OF_WEIGHTS = 0.8
"""Of a GPU's memory that weights may take while they are quantized, as the quantizer spreads them."""

_COPIES = 2
"""The engine, and the model repository that holds it."""

_NOTHING_STARTED = "remove or change them; nothing was started"


def plan_release(
    path: Path,
    *,
    store_seconds: float | None = None,
    source_seconds: float | None = None,
    revision: str | None = None,
    overrides: Overrides | None = None,
    read_model: bool = False,
    replace: bool = False,
) -> Plan:
    """Check a release config and all that it names.

    Args:
        path: The release config.
        store_seconds: How long the store may take to tell what it holds; 0 asks it nothing, None waits a moment.
        source_seconds: How long the sources of the model and of the evaluation's data may take to show them; 0 asks
            neither: then the model is judged as far as the release config states its sizes.
        revision: Branch, tag or commit of the model instead of the config's.
        overrides: What the run has otherwise than the config says; None for nothing.
        read_model: The model itself must be read: stated sizes do not stand in for it.
        replace: The release is meant to take its places over from other models.

    Raises:
        PlaceTaken: Another model holds a place of the release.
        ConfigError: A file is missing or wrong, the deployment's directories clash, this machine lacks what it names,
            another deployment serves at a place, or a size of the model is not known.
        SourceRefused: The model's source does not give it, or a data set of its tasks is not to be had.
        SourceUnavailable: It does not answer, and the release config states no sizes.
        Unsupported: A recipe is legal on no target, a target has no legal recipe, a task cannot be asked where it is
            to be asked, or a search cannot reach its bits.
    """
    overrides = overrides or Overrides()
    loaded = load_release(path, overrides.model_copy(update={"revision": revision}) if revision else overrides)
    release, deployment, revision = loaded.release, loaded.deployment, loaded.overrides.revision
    if store_seconds is None:
        store_seconds = _DIRECTORY_SECONDS if deployment.store.directory else _BUCKET_SECONDS
    asked = ask_store(loaded, store_seconds, replace=replace)
    host.check_directories(loaded)
    check_prices(loaded)
    release_checks.check_adapters(loaded)
    release_checks.check_routers(loaded)
    # What does not run whatever the model is, before it is read:
    _refuse_impossible(loaded, [plan_target(loaded, target, None) for target in release.targets])
    release_checks.check_data_files(loaded)
    require_enough(release.workload, release.policy.load_test)
    tasks = task_pool(release.evaluation, loaded.configs_root)
    facts, origin_warnings = look_at_model(loaded, revision, source_seconds, required=read_model)
    if facts:
        release_checks.check_model(loaded, facts)
    release_checks.check_recipes(loaded, facts)
    task_warnings = check_tasks(release.evaluation, loaded.configs_root)
    refusals, placement_warnings = judge_task_placement(tasks, release.evaluation.served_tasks, release.targets)
    refuse(
        [f"{loaded.path}: {refused.reason} -> {refused.nearest}" for refused in refusals],
        hint="score them on the checkpoint only; nothing was started",
        kind=Unsupported,
    )
    targets = tuple(plan_target(loaded, target, facts) for target in release.targets)
    _refuse_impossible(loaded, targets)
    unused = _refuse_variants(loaded, targets, facts)
    refuse(
        [
            f"{loaded.path}: target {target.name}: its server is several processes (mode {launch_mode(target)}), and "
            "staging and production start one on a host"
            for target in release.targets
            if launch_mode(target) != "single"
        ],
        hint="use engine: tensorrt_llm_llmapi on the GPUs of one host, where one server starts all ranks",
        kind=Unsupported,
    )
    disk = _plan_disk(loaded, facts) if facts else None
    obstacles = {
        how_to_make_an_interpreter(): host.missing_interpreters(deployment),
        "a release ends at its canary without one": host.missing_routers(deployment, loaded.places.values()),
        "free disk space, or name other places in the deployment file": disk.problems() if disk else (),
    }
    here = all(target.accelerator == "cpu" for target in release.targets)
    if here:
        for hint, found in obstacles.items():
            refuse(found, where=f"deployment {deployment.name}", hint=hint)
        lacking = host.busy_ports(deployment, tuple(loaded.places.values()))
    else:  # it stops nothing: the stages run elsewhere
        lacking = tuple(f"on this machine, {obstacle}" for found in obstacles.values() for obstacle in found)
    order, steps = climbing_order(release, facts), planned_steps(release, facts)
    legal = {target.name: {recipe.recipe for recipe in target.recipes if recipe.legal} for target in targets}
    ladders = {name: tuple(recipe for recipe in order if recipe in recipes) for name, recipes in legal.items()}
    served = [task for task in tasks if task.name in release.evaluation.served_tasks]
    predicted = predicted_seconds(loaded, facts, tasks, ladders)
    seen = answer_of(asked, loaded)
    stages = tuple(planned_stage(loaded, step, seen.history, predicted.get(step)) for step in steps)
    check_budget(loaded, stages)
    return Plan(
        config=str(loaded.path),
        release=release.name,
        model=release.model.id,
        revision=revision or release.model.revision,
        overrides=str(loaded.overrides),
        dtype=release.baseline.dtype,
        deployment=deployment.name,
        facts=facts,
        stages=stages,
        total=total_cost(loaded, stages),
        targets=targets,
        disk=disk,
        ladders=ladders,
        tasks=tasks,
        warnings=(
            *seen.warnings,
            *origin_warnings,
            *([] if facts else [f"memory and disk are not judged: the sizes of {release.model.id} are not known"]),
            *release_checks.model_warnings(loaded, facts),
            *_target_warnings(loaded, targets),
            *unused,
            *release_checks.recipe_warnings(loaded),
            *task_warnings,
            *placement_warnings,
            *expected_warnings(release),
            *gate_warnings("accuracy", tasks, release.policy.accuracy),
            *gate_warnings("served_accuracy", served, release.policy.served_accuracy),
            *load_test_warnings(sample_size(release.workload, release.policy.load_test)),
            *canary_warnings(release.policy.canary, release.workload.rate_per_second),
            *release_checks.adapter_warnings(loaded),
            *release_checks.router_warnings(loaded),
            *_quantization_warnings(loaded, facts, here=here),
            *lacking,
        ),
    )


def _refuse_impossible(loaded: LoadedRelease, targets: Sequence[TargetPlan]) -> None:
    cells = [(target, recipe) for target in targets for recipe in target.recipes]
    useful = {recipe.recipe for _, recipe in cells if recipe.legal}
    lost = {target.name for target in targets if not any(recipe.legal for recipe in target.recipes)}
    problems = [
        f"{loaded.path}: recipe {recipe.recipe} on target {target.name}: {recipe.reason} -> {recipe.nearest}"
        for target, recipe in cells
        if not recipe.legal and (recipe.recipe not in useful or target.name in lost)
    ]
    refuse(problems, hint=_NOTHING_STARTED, kind=Unsupported)


def _refuse_variants(loaded: LoadedRelease, targets: Sequence[TargetPlan], facts: ModelFacts | None) -> list[str]:
    """Refuse a variant that none of its target's recipes can have; returns what is stated and not tried.

    Raises:
        Unsupported: There is one.
    """
    if loaded.release.ladder.objective == "size":
        unused = [target.name for target in loaded.release.targets if target.variants]
        return [f"variants of {', '.join(unused)} are not tried: ladder.objective is size"] if unused else []
    problems = []
    for target, plan in zip(loaded.release.targets, targets, strict=True):
        legal = {recipe.recipe for recipe in plan.recipes if recipe.legal}
        for name in target.variants:
            varied = plan_target(loaded, target.varied(name), facts)
            refused = [recipe for recipe in varied.recipes if recipe.recipe in legal and not recipe.legal]
            if len(refused) == len(legal):
                problems.append(f"{loaded.path}: target {target.name}, variant {name}: {refused[0].reason}")
    refuse(problems, hint=_NOTHING_STARTED, kind=Unsupported)
    return []


def _plan_disk(loaded: LoadedRelease, facts: ModelFacts) -> DiskPlan:
    """Recipe `none` passes the download through; engines that hold no weights serve the checkpoint as it is."""
    deployment = loaded.deployment
    store, work = deployment.store.directory, host.existing_parent(deployment.work_root)
    parent = host.existing_parent(store) if store else None
    engines = sum(engine_adapter(target.engine).holds_weights for target in loaded.release.targets)
    sizes = {recipe: weight_bytes(facts, recipe) for recipe in loaded.release.recipes}
    return DiskPlan(
        download=facts.stored_bytes,
        recipes=sum(size for recipe, size in sizes.items() if recipe.weights != "none"),
        engines=engines * _COPIES * max(sizes.values()),
        work=max(facts.stored_bytes, *sizes.values()),
        free_store=host.free_bytes(parent) if parent else None,
        free_work=host.free_bytes(work),
        one_file_system=parent is not None and parent.stat().st_dev == work.stat().st_dev,
    )


def _quantization_warnings(loaded: LoadedRelease, facts: ModelFacts | None, *, here: bool) -> Iterator[str]:
    """Weights that leave the GPUs that quantize no room for a calibration, or that the deployment names none."""
    named = loaded.deployment.quantization_host
    if facts is None:
        return
    if named is None:
        if not here:
            where = f"deployment {loaded.deployment.name}"
            yield f"memory and time of quantization are not predicted: {where} names no quantization_host"
        return
    weights, usable = weight_bytes(facts, PLAIN), _SHARE_OF_WEIGHTS * find_gpu(named.accelerator).usable_bytes
    if weights > named.count * usable:
        yield (
            f"the model's weights take {byte_size(weights)} at 16 bit, and {named.count} x {named.accelerator} do not "
            f"hold them with a calibration: {ceil(weights / usable)} do, quantization_host.count"
        )


def _target_warnings(loaded: LoadedRelease, targets: Sequence[TargetPlan]) -> Iterator[str]:
    """Images that are not pinned, engines that are served elsewhere than built, and doubtful and refused recipes."""
    unpinned: dict[str, list[str]] = {}
    for target in targets:
        if target.container and not target.digest:
            unpinned.setdefault(target.container, []).append(target.name)
    for image, names in unpinned.items():
        yield (
            f"{', '.join(names)}: {image} is not pinned, and a tag may come to mean another image: "
            "append its digest, @sha256:..., as `docker buildx imagetools inspect` shows it"
        )
    for target, written in zip(targets, loaded.release.targets, strict=True):
        engine, place = engine_adapter(target.engine), loaded.places[target.name]
        serves = loaded.deployment.places[place].environment
        if engine.beside_triton and serves != written.environment:
            yield (
                f"{target.name} is built in environment {written.environment} and served in {serves}: "
                f"{engine.runtime} must be in both, or places.{place}.environment name the first one"
            )
        yield from (f"{target.name}: {warning}" for warning in target.warnings)
        for recipe in target.recipes:
            name = f"{recipe.recipe} on {target.name}"
            yield from (f"{name}: {warning}" for warning in recipe.warnings)
            if not recipe.legal:
                yield f"{name} is refused, so {target.name} fails if {recipe.recipe} is chosen: {recipe.reason}"
