"""The plan of a release: every check that needs no GPU, no network and no money.

    plan = plan_release(Path("configs/releases/demo.yaml"))
    sys.stdout.write(format_plan(plan))

What cannot work is an error before anything is spent; what is not known, or only looks wrong from this machine,
is a warning in the plan.
"""

from __future__ import annotations

from pathlib import Path

from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import LoadedRelease, load_release
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.config.target import Target
from llm_pipeline.errors import ConfigError, Unsupported
from llm_pipeline.planning import host
from llm_pipeline.planning.catalog import containers, find_gpu
from llm_pipeline.planning.compatibility import Refused, judge_compatibility
from llm_pipeline.planning.data_files import check_data_files
from llm_pipeline.planning.disk import disk_need
from llm_pipeline.planning.evidence import GatePower, gate_power
from llm_pipeline.planning.ladder import target_order
from llm_pipeline.planning.lanes import judge_lanes
from llm_pipeline.planning.model import DiskPlan, Plan, RecipePlan, TargetPlan
from llm_pipeline.planning.model_shape import ModelShape, known_shape
from llm_pipeline.planning.quantization_plan import GpuCost, gpu_cost
from llm_pipeline.planning.recipe_checks import check_recipes, recipe_warnings
from llm_pipeline.planning.stage_graph import planned_stages
from llm_pipeline.planning.table import format_plan
from llm_pipeline.planning.target_memory import judge_memory
from llm_pipeline.planning.target_speed import JudgedSpeed, judge_speed
from llm_pipeline.planning.task_pool import TaskItems, task_pool

__all__ = ["Plan", "format_plan", "plan_release"]


def plan_release(path: Path) -> Plan:
    """Check a release config and all that it names.

    Raises:
        ConfigError: A file is missing or wrong, or this machine lacks what the deployment names.
        Unsupported: A recipe is legal on no target, a target has no legal recipe, a task cannot be asked where it is
            to be asked, or a search cannot reach its bits.
    """
    loaded = load_release(path)
    release, deployment = loaded.release, loaded.deployment
    shape = known_shape(release.model.id)
    check_recipes(loaded, shape)
    check_data_files(loaded)
    tasks = task_pool(release.evaluation, loaded.configs_root)
    lane_warnings = _check_lanes(loaded, tasks)
    gates = _gates(release, tasks)
    targets = tuple(_plan_target(loaded, target, shape) for target in release.targets)
    _refuse_impossible(loaded, targets)
    disk = _plan_disk(loaded, shape) if shape else None
    here = all(target.accelerator == "cpu" for target in release.targets)
    obstacles = (*host.missing_interpreters(deployment), *(disk.problems() if disk else ()))
    if here:
        _refuse_obstacles(loaded, obstacles)
    gpus = _gpu_cost(loaded, targets, shape, (tasks, gates[0]))
    return Plan(
        config=str(loaded.path),
        release=release.name,
        model=release.model.id,
        revision=release.model.revision,
        dtype=release.baseline.dtype,
        deployment=deployment.name,
        parameters=shape.parameters if shape else None,
        checkpoint_bytes=disk.need.download if disk else None,
        stages=planned_stages(release),
        targets=targets,
        disk=disk,
        ladders=_ladders(release, targets),
        tasks=tasks,
        gates=gates,
        gpus=gpus,
        warnings=(
            *_shape_warnings(release, shape),
            *_target_warnings(targets),
            *recipe_warnings(loaded),
            *lane_warnings,
            *(line for gate in gates for line in gate.warnings),
            *_gpu_warnings(loaded, gpus, shape, here=here),
            *_host_warnings(loaded, obstacles, here=here),
        ),
    )


def _ladders(release: ResolvedRelease, targets: tuple[TargetPlan, ...]) -> dict[str, tuple[str, ...]]:
    legal = {target.name: {recipe.recipe for recipe in target.recipes if recipe.legal} for target in targets}
    return {
        target.name: tuple(recipe for recipe in target_order(release, target) if recipe in legal[target.name])
        for target in release.targets
    }


def _check_lanes(loaded: LoadedRelease, tasks: tuple[TaskItems, ...]) -> tuple[str, ...]:
    release = loaded.release
    refusals, warnings = judge_lanes(tasks, release.evaluation.served_tasks, release.targets)
    if refusals:
        lines = [f"{loaded.path}: {refused.reason} -> {refused.nearest}" for refused in refusals]
        raise Unsupported("\n".join(lines), hint="score them on the checkpoint only; nothing was started")
    return warnings


def _gates(release: ResolvedRelease, tasks: tuple[TaskItems, ...]) -> tuple[GatePower, GatePower]:
    served = [task for task in tasks if task.name in release.evaluation.served_tasks]
    return (
        gate_power("accuracy", tasks, release.policy.accuracy),
        gate_power("served_accuracy", served, release.policy.served_accuracy),
    )


def _gpu_cost(
    loaded: LoadedRelease,
    targets: tuple[TargetPlan, ...],
    shape: ModelShape | None,
    evidence: tuple[tuple[TaskItems, ...], GatePower],
) -> GpuCost | None:
    host_named = loaded.deployment.quantization_host
    if shape is None or host_named is None:
        return None
    useful = {recipe.recipe for target in targets for recipe in target.recipes if recipe.legal}
    recipes = [recipe for recipe in loaded.release.recipes if recipe.name in useful]
    try:
        return gpu_cost(loaded.release, recipes, host_named, shape, evidence)
    except ConfigError as error:
        where = f"deployment {loaded.deployment.name}"
        raise ConfigError(f"quantization_host: {error.message}", where=where, hint=error.hint) from error


def _plan_target(loaded: LoadedRelease, target: Target, shape: ModelShape | None) -> TargetPlan:
    try:
        gpu = None if target.accelerator == "cpu" else find_gpu(target.accelerator)
    except ConfigError as error:
        where = str(loaded.configs_root / "targets" / f"{target.name}.yaml")
        raise ConfigError(f"accelerator: {error.message}", where=where, hint=error.hint) from error
    image = (target.container or "").partition("@")[0]
    return TargetPlan(
        name=target.name,
        accelerator=target.accelerator,
        accelerators=target.accelerator_count if gpu else 0,
        architecture=gpu.sm if gpu else "",
        engine=target.engine,
        runtime_version=target.runtime_version,
        container=target.container,
        driver={known.image: known.driver for known in containers()}.get(image),
        recipes=tuple(_plan_recipe(loaded.release, target, recipe, shape) for recipe in loaded.release.recipes),
    )


def _plan_recipe(
    release: ResolvedRelease, target: Target, recipe: QuantizationRecipe, shape: ModelShape | None
) -> RecipePlan:
    judged = judge_compatibility(target, recipe, release.baseline.dtype, release.model.id)
    refusal = judged if isinstance(judged, Refused) else None
    memory, speed = None, JudgedSpeed(None, None)
    if shape and not refusal:
        memory, refusal = judge_memory(target, recipe, shape)
        speed = judge_speed(release, target, recipe, shape)
    refusal = refusal or speed.refused
    return RecipePlan(
        recipe=recipe.name,
        weights=recipe.weights,
        legal=refusal is None,
        reason=refusal.reason if refusal else "",
        nearest=refusal.nearest if refusal else "",
        warnings=() if isinstance(judged, Refused) else (*judged.warnings, *speed.warnings),
        memory=memory,
        speed=speed.figures,
    )


def _refuse_impossible(loaded: LoadedRelease, targets: tuple[TargetPlan, ...]) -> None:
    cells = [(target, recipe) for target in targets for recipe in target.recipes]
    useful = {recipe.recipe for _, recipe in cells if recipe.legal}
    lost = {target.name for target in targets if not any(recipe.legal for recipe in target.recipes)}
    problems = [
        f"{loaded.path}: recipe {recipe.recipe} on target {target.name}: {recipe.reason} -> {recipe.nearest}"
        for target, recipe in cells
        if not recipe.legal and (recipe.recipe not in useful or target.name in lost)
    ]
    if problems:
        raise Unsupported("\n".join(problems), hint="remove or change them; nothing was started")


def _refuse_obstacles(loaded: LoadedRelease, obstacles: tuple[str, ...]) -> None:
    if obstacles:
        raise ConfigError(
            "\n".join(obstacles),
            where=f"deployment {loaded.deployment.name}",
            hint="`make environments` makes the interpreters; free disk space, or name other places",
        )


def _plan_disk(loaded: LoadedRelease, shape: ModelShape) -> DiskPlan:
    deployment: Deployment = loaded.deployment
    store, work = host.store_directory(deployment), host.existing_parent(deployment.work_root)
    parent = host.existing_parent(store) if store else None
    return DiskPlan(
        need=disk_need(shape, loaded.release.recipes, len(loaded.release.targets)),
        free_store=host.free_bytes(parent) if parent else None,
        free_work=host.free_bytes(work),
        one_file_system=parent is not None and parent.stat().st_dev == work.stat().st_dev,
    )


def _shape_warnings(release: ResolvedRelease, shape: ModelShape | None) -> tuple[str, ...]:
    if shape:
        return ()
    speed = ", policy speed" if release.policy.speed else ""
    return (f"memory and disk{speed} are not judged: plan does not know the shape of {release.model.id}",)


def _gpu_warnings(
    loaded: LoadedRelease, gpus: GpuCost | None, shape: ModelShape | None, *, here: bool
) -> tuple[str, ...]:
    if gpus:
        return tuple(line for recipe in gpus.recipes for line in recipe.warnings)
    if here or shape is None:
        return ()
    where = f"deployment {loaded.deployment.name}"
    return (f"memory and time of quantization are not predicted: {where} names no quantization_host",)


def _target_warnings(targets: tuple[TargetPlan, ...]) -> tuple[str, ...]:
    found = []
    for target in targets:
        for recipe in target.recipes:
            name = f"{recipe.recipe} on {target.name}"
            found += [f"{name}: {warning}" for warning in recipe.warnings]
            if not recipe.legal:
                found.append(f"{name} is refused, so {target.name} fails if {recipe.recipe} is chosen: {recipe.reason}")
    return tuple(found)


def _host_warnings(loaded: LoadedRelease, obstacles: tuple[str, ...], *, here: bool) -> tuple[str, ...]:
    release, deployment = loaded.release, loaded.deployment
    found = [*host.missing_credentials(deployment, release.model.source), *host.missing_signing_keys(deployment)]
    if here:
        found += host.busy_ports(deployment, tuple(target.name for target in release.targets))
    else:
        found += [f"on this machine, {obstacle}" for obstacle in obstacles]
    return tuple(found)
