"""Names of the data sets that resolving a release would publish, without publishing any.

The layout is that of `stages/resolve.py`: one file under its own name, several numbered, a directory as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from llm_pipeline.base.digest import digest_file
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.loading import LoadedRelease
from llm_pipeline.config.quantization import NAMED_SET, Calibration
from llm_pipeline.loadtest.workload_files import workload_files
from llm_pipeline.release.record import PROMPTS_DATASET, TASKS_DATASET, ReleaseRecord, calibration_dataset
from llm_pipeline.store.manifest import Manifest, ManifestFile

_KIND = "dataset"
_COMMIT = re.compile(r"[0-9a-f]{40}")


def expected_datasets(loaded: LoadedRelease, earlier: ReleaseRecord) -> dict[str, ArtifactRef]:
    """The data sets by name.

    Public sets are not fetched for this: a recipe that draws from one has the data set of the earlier release, if that
    drew from the same sources, and none here otherwise.
    """
    release, root = loaded.release, loaded.configs_root
    expected = {PROMPTS_DATASET: _ref([root / name for name in workload_files(release.workload)])}
    if release.evaluation.task_directory:
        expected[TASKS_DATASET] = _ref([root / release.evaluation.task_directory])
    before = {recipe.name: recipe.calibration for recipe in earlier.release.recipes}
    for recipe in release.recipes:
        name, asked = calibration_dataset(recipe.name), recipe.calibration
        if asked and _is_local(asked):
            expected[name] = _ref([root / source.dataset for source in asked.sources])
        elif asked and name in earlier.datasets and _draw_alike(asked, before.get(recipe.name)):
            expected[name] = earlier.datasets[name]
    return expected


def expected_data_commits(loaded: LoadedRelease, earlier: ReleaseRecord) -> dict[str, str]:
    """Commits of the data sets that the tasks read, if their branches and tags still name those of an earlier release.

    A data set whose revision is another one now has none, unless that is a commit itself.
    """
    before, now = earlier.release.evaluation.data_revisions, loaded.release.evaluation.data_revisions
    found = {}
    for name, commit in earlier.data_commits.items():
        data_set = name.partition("@")[0]
        revision = now.get(data_set)
        if revision == before.get(data_set):
            found[name] = commit
        elif revision is not None and _COMMIT.fullmatch(revision):
            found[name] = revision
    return found


def _is_local(calibration: Calibration) -> bool:
    return not any(source.dataset.startswith(NAMED_SET) for source in calibration.sources)


def _draw_alike(asked: Calibration, before: Calibration | None) -> bool:
    return before is not None and asked.sources == before.sources and asked.chat_template == before.chat_template


def _ref(paths: Sequence[Path]) -> ArtifactRef:
    files = _directory(paths[0]) if len(paths) == 1 and paths[0].is_dir() else _numbered(paths)
    held = [ManifestFile(path=name, **digest_file(path)._asdict()) for name, path in sorted(files.items())]
    return Manifest(kind=_KIND, files=tuple(held)).ref


def _numbered(paths: Sequence[Path]) -> Mapping[str, Path]:
    if len(paths) == 1:
        return {paths[0].name: paths[0]}
    return {f"{number}-{path.name}": path for number, path in enumerate(paths)}


def _directory(directory: Path) -> Mapping[str, Path]:
    return {path.relative_to(directory).as_posix(): path for path in _published(directory)}


def _published(directory: Path) -> Iterator[Path]:
    for path in directory.iterdir():
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            yield from _published(path)
        elif path.is_file():
            yield path
