"""The resolve stage: pins the model's commit, takes in the data files, and names the release."""

from __future__ import annotations

import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

from llm_pipeline.config.loading import LoadedRelease, load_release
from llm_pipeline.config.model import ConfigModel, Revision
from llm_pipeline.digest import sha256_json
from llm_pipeline.engines.builder import require_builder
from llm_pipeline.hub.access import connect
from llm_pipeline.hub.pinned import PinnedModel
from llm_pipeline.hub.resolve import resolve_revision
from llm_pipeline.logging import get_logger
from llm_pipeline.planning.plan import plan_release
from llm_pipeline.release_record import (
    PROMPTS_DATASET,
    TASKS_DATASET,
    ReleaseRecord,
    calibration_dataset,
    record_name,
)
from llm_pipeline.stages.contract import ArtifactRef, Stage, StageContext, StageOutput
from llm_pipeline.stages.execute import replace_document
from llm_pipeline.store.provenance import Provenance, here

log = get_logger(__name__)


class ResolveConfig(ConfigModel):
    """What to resolve.

    Attributes:
        config_path: The release config's file.
        revision: Branch, tag or commit to use instead of the config's.
    """

    config_path: str
    revision: Revision | None = None


def run(context: StageContext[ResolveConfig]) -> StageOutput:
    """Pin, publish the data files, write the record.

    Raises:
        ConfigError: The release config is wrong.
        Unsupported: The plan shows that it cannot work: nothing was spent.
        Terminal: The hub refuses the model.
        Transient: The hub cannot be reached.
    """
    plan = plan_release(Path(context.config.config_path))
    for warning in plan.warnings:
        log.warning(warning)
    loaded = load_release(Path(context.config.config_path))
    for target in loaded.release.targets:
        require_builder(target.engine)
    clock = time.monotonic()
    access = loaded.deployment.hub
    hub = connect(access.endpoint, access.token_variable)
    model = resolve_revision(hub, loaded.release.model.id, context.config.revision or loaded.release.model.revision)
    hub_seconds = time.monotonic() - clock
    datasets = _publish_datasets(context, loaded)
    release_id = name_release(loaded, model, datasets)
    record = ReleaseRecord(
        release_id=release_id,
        release=loaded.release,
        deployment=loaded.deployment,
        model=model,
        datasets=datasets,
        created_at=datetime.now(UTC),
    )
    replace_document(context.store, record_name(release_id), record.model_dump(mode="json"))
    replace_document(context.store, f"releases/{release_id}/plan.json", plan.model_dump(mode="json"))
    total_bytes = sum(file.size for file in model.files)
    log.info("release named", release=release_id, model=model.id, commit=model.commit)
    log.info("to download", files=len(model.files), megabytes=total_bytes / 1e6, license=model.license or "not stated")
    return StageOutput(
        release_id=release_id,
        metrics={
            "release_id": release_id,
            "model": model.id,
            "commit": model.commit,
            "files": len(model.files),
            "bytes": total_bytes,
        },
        tool_seconds=hub_seconds,
    )


def name_release(loaded: LoadedRelease, model: PinnedModel, datasets: dict[str, ArtifactRef]) -> str:
    """The release id: the same config, data and commit always give the same one."""
    content = {
        "release": loaded.release.model_dump(mode="json"),
        "datasets": {name: ref.digest for name, ref in datasets.items()},
    }
    return f"{loaded.config.name}-{model.commit[:8]}-{sha256_json(content)[:8]}"


def _publish_datasets(context: StageContext[ResolveConfig], loaded: LoadedRelease) -> dict[str, ArtifactRef]:
    release = loaded.release
    sources = {PROMPTS_DATASET: release.workload.prompts}
    if release.evaluation.task_directory:
        sources[TASKS_DATASET] = release.evaluation.task_directory
    for recipe in release.recipes:
        if recipe.calibration:
            sources[calibration_dataset(recipe.name)] = recipe.calibration.dataset
    return {name: _publish(context, name, loaded.configs_root / source) for name, source in sources.items()}


def _publish(context: StageContext[ResolveConfig], name: str, source: Path) -> ArtifactRef:
    staged = context.workdir / name
    shutil.rmtree(staged, ignore_errors=True)
    if source.is_dir():
        shutil.copytree(source, staged, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    else:
        staged.mkdir(parents=True)
        shutil.copy2(source, staged / source.name)
    ref = context.store.publish("dataset", staged, Provenance(config={"source": source.name}, **here()))
    log.info(f"dataset {name}", file=source.name, artifact=str(ref))
    return ref


STAGE = Stage(
    name="resolve",
    version=1,
    config=ResolveConfig,
    run=run,
    environment="control",
    tools=("huggingface_hub",),
    reusable=False,
)
