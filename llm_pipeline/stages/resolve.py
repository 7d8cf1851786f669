"""The resolve stage: pins the model's commit, takes in data files, names the release."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pydantic import Field, JsonValue

from llm_pipeline.artifacts.pinned import PinnedModel
from llm_pipeline.base.collector import sparing
from llm_pipeline.base.digest import sha256_file, sha256_json
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.catalog.named_sets import named_set
from llm_pipeline.config.loading import each_file_read_once
from llm_pipeline.config.model import ConfigModel, Line, Revision
from llm_pipeline.config.overrides import Overrides
from llm_pipeline.config.quantization import NAMED_SET, Calibration
from llm_pipeline.config.release import ready_checkpoint
from llm_pipeline.hub.model_card import license_change, require_license
from llm_pipeline.planning.plan import plan_release
from llm_pipeline.release.contract import (
    PROMPTS_DATASET,
    TASKS_DATASET,
    Stage,
    StageContext,
    StageOutput,
    calibration_dataset,
)
from llm_pipeline.release.execute import outdate_summary, results_name
from llm_pipeline.release.loading import LoadedRelease, load_release
from llm_pipeline.release.newest import newest_of_config, note_release
from llm_pipeline.release.record import ReleaseRecord, read_release_record, release_record_name
from llm_pipeline.stages.download import STAGE as DOWNLOAD
from llm_pipeline.store import ArtifactStore
from llm_pipeline.store.provenance import Provenance, here
from llm_pipeline.store.signed_documents import replace_document, write_signed

log = get_logger(__name__)

_STORE_SECONDS = 30.0
"""How long the store may take to say what will be reused; nobody waits at a terminal here."""

_SOURCE_SECONDS = 300.0
"""The same of the model's source, which is asked for the headers of all weight files."""


class ResolveConfig(ConfigModel):
    """What to resolve.

    Attributes:
        config_path: The release config's file.
        revision: Branch, tag or commit to use instead of the config's.
        overrides: What else this run has otherwise than the config says.
        overridden_by: Who asked for that.
    """

    config_path: str
    revision: Revision | None = None
    overrides: Overrides = Field(default=Overrides(), exclude_if=lambda asked: not asked)
    overridden_by: Line = Field(default="", exclude_if=lambda by: not by)

    @property
    def loaded(self) -> LoadedRelease:
        """The release config as this run has it."""
        return load_release(Path(self.config_path), self.overrides)


@sparing()
def run(context: StageContext[ResolveConfig]) -> StageOutput:
    """Pin, review, publish the data files, write the record.

    Raises:
        ConfigError: The release config is wrong.
        Unsupported: The plan shows that it cannot work, or the model's licence is not allowed: nothing was spent.
        Terminal: The source refuses the model, or it does not fit on the disks.
        Transient: The source cannot be reached.
    """
    from llm_pipeline.hub.sources import open_source  # the hub's client loads slowly

    with each_file_read_once():
        plan = plan_release(
            Path(context.config.config_path),
            store_seconds=_STORE_SECONDS,
            source_seconds=_SOURCE_SECONDS,
            revision=context.config.revision,
            overrides=context.config.overrides,
            read_model=True,
        )
        loaded = context.config.loaded
    for warning in plan.warnings:
        log.warning(f"plan: {warning}")
    asked = loaded.release.model
    source = open_source(asked.source, loaded.deployment.hub, loaded.deployment.store)
    model = source.resolve(asked.id, context.config.revision or asked.revision)
    checkpoints = {
        recipe.name: open_source(ready.source, loaded.deployment.hub, loaded.deployment.store).resolve(
            ready.id, ready.revision
        )
        for recipe in loaded.release.recipes
        if (ready := ready_checkpoint(recipe)) is not None
    }
    for fetched in (model, *checkpoints.values()):
        require_license(fetched, loaded.release.model.licenses)
    before = released_before(context.store, loaded.release.name)
    changes = [license_change(before.model if before else None, model)]
    for recipe, checkpoint in checkpoints.items():
        changed = license_change(before.checkpoints.get(recipe) if before else None, checkpoint)
        changes.append(changed and f"recipe {recipe}: {changed}")
    change = "; ".join(filter(None, changes))
    if change:
        log.warning("the licence or the gating has changed", change=change, model=model.name)
    datasets = _publish_datasets(context, loaded)
    release_id = name_release(loaded, model, checkpoints, datasets)
    record = ReleaseRecord(
        release_id=release_id,
        release=loaded.release,
        deployment=loaded.deployment,
        model=model,
        checkpoints=checkpoints,
        datasets=datasets,
        brings_data=all(task.local for task in plan.tasks),
        ladders=plan.ladders,
        facts=plan.facts,
        places=loaded.places,
        budget=loaded.config.budget,
        overrides=loaded.overrides,
        overridden_by=context.config.overridden_by,
        created_at=datetime.now(UTC),
    )
    outdate_summary(context.store, release_id)
    write_signed(context.store, release_record_name(release_id), record.model_dump(mode="json"))
    replace_document(context.store, f"releases/{release_id}/plan.json", plan.model_dump(mode="json"))
    note_release(context.store, record)
    log.info("release named", release=release_id, model=model.id, commit=model.commit)
    if record.overrides:
        log.info("this run has otherwise than its config", overrides=record.overrides_in_words)
    log.info("to download", files=len(model.files), megabytes=model.size / 1e6, license=model.license or "not stated")
    return StageOutput(
        release_id=release_id,
        metrics={
            "release_id": release_id,
            "model": model.id,
            "commit": model.commit,
            "source": loaded.release.model.source,
            "files": len(model.files),
            "bytes": model.size,
            "license": model.license or "",
            "gated": model.gated or "",
            **{f"commit_of_{recipe}": checkpoint.commit for recipe, checkpoint in checkpoints.items()},
            "license_change": change,
        },
    )


def released_before(store: ArtifactStore, release_name: str) -> ReleaseRecord | None:
    """The newest release of a release config for which something was fetched.

    A release that only was resolved does not count: whoever was asked about its licence may have said no.

    Raises:
        IntegrityError: A record cannot be understood.
    """
    for release_id in newest_of_config(store, release_name):
        fetched = store.read_document(results_name(release_id, DOWNLOAD.name, ""))
        if fetched is not None and store.read_document(release_record_name(release_id)) is not None:
            return read_release_record(store, release_id)
    return None


def name_release(
    loaded: LoadedRelease,
    model: PinnedModel,
    checkpoints: Mapping[str, PinnedModel],
    datasets: Mapping[str, ArtifactRef],
) -> str:
    """The release id: the same config, data files and commits always give the same one."""
    content = {
        "release": loaded.release.model_dump(mode="json"),
        "datasets": {name: ref.digest for name, ref in datasets.items()},
        "checkpoints": {recipe: checkpoint.commit for recipe, checkpoint in checkpoints.items()},
    }
    return f"{loaded.config.name}-{model.commit[:8]}-{sha256_json(content)[:8]}"


def _publish_datasets(context: StageContext[ResolveConfig], loaded: LoadedRelease) -> dict[str, ArtifactRef]:
    release, root = loaded.release, loaded.configs_root
    own = {PROMPTS_DATASET: root / release.workload.prompts}
    if release.evaluation.task_directory:
        own[TASKS_DATASET] = root / release.evaluation.task_directory
    published = {name: _publish(context, name, [_SourceFile(path, path.name)]) for name, path in own.items()}
    for recipe in release.recipes:
        if recipe.calibration:
            name = calibration_dataset(recipe.name)
            published[name] = _publish(context, name, _calibration_files(loaded, recipe.calibration))
    return published


class _SourceFile(NamedTuple):
    """A file or directory to publish, its name there, and where it is from when it is none of the release's own."""

    path: Path
    name: str
    origin: Mapping[str, JsonValue] | None = None


def _calibration_files(loaded: LoadedRelease, calibration: Calibration) -> list[_SourceFile]:
    found = []
    for source in calibration.sources:
        if not source.startswith(NAMED_SET):
            path = loaded.data_file(source)
            found.append(_SourceFile(path, path.name))
            continue
        from llm_pipeline.hub.access import connect
        from llm_pipeline.hub.sources import fetch_dataset_file

        wanted = named_set(source, chat=calibration.chat_template)
        access, kept = loaded.deployment.hub, Path(loaded.deployment.work_root) / "datasets"
        hub = connect(access.endpoint, access.token_variable)
        path, file = fetch_dataset_file(hub, wanted.dataset, wanted.revision, wanted.file, kept)
        of = {"dataset": wanted.dataset, "commit": wanted.revision, "file": wanted.file}
        found.append(_SourceFile(path, wanted.file_name, {**of, "sha256": file.sha256 or sha256_file(path)}))
    return found


def _publish(context: StageContext[ResolveConfig], name: str, sources: Sequence[_SourceFile]) -> ArtifactRef:
    """One directory with the files; several of them are numbered, in their order."""
    staged = context.workdir / name
    shutil.rmtree(staged, ignore_errors=True)
    if len(sources) == 1 and sources[0].path.is_dir():
        shutil.copytree(sources[0].path, staged, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    else:
        staged.mkdir(parents=True)
        for number, source in enumerate(sources):
            shutil.copy2(source.path, staged / (source.name if len(sources) == 1 else f"{number}-{source.name}"))
    config: dict[str, JsonValue] = {"source": ", ".join(source.name for source in sources)}
    if origins := [dict(source.origin) for source in sources if source.origin]:
        config["origins"] = [*origins]
    ref = context.store.publish("dataset", staged, Provenance(config=config, **here()))
    log.info(f"dataset {name}", file=config["source"], artifact=str(ref))
    return ref


def _configuration(config: ResolveConfig) -> tuple[JsonValue, ...]:
    loaded = config.loaded
    return loaded.deployment.hub.model_dump(mode="json"), loaded.release.model.model_dump(mode="json")


STAGE = Stage(
    name="resolve", version=2, config=ResolveConfig, run=run, reads=_configuration, tools=("huggingface_hub",)
)
