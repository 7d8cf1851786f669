"""The jsonl files that a release names: enough lines, with the field that its stage will read."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

from llm_pipeline.config.loading import LoadedRelease
from llm_pipeline.config.quantization import NAMED_SET, Calibration
from llm_pipeline.errors import ConfigError
from llm_pipeline.quantization.calibration import choose_samples
from llm_pipeline.quantization.calibration_samples import read_source


def check_data_files(loaded: LoadedRelease) -> None:
    """Check the calibration sets and the load test's prompts.

    Raises:
        ConfigError: A line that would be read is not an object with the expected field, or there are too few.
    """
    _check_lines(loaded.configs_root / loaded.release.workload.prompts, "prompt", 1)
    for recipe in loaded.release.recipes:
        if recipe.calibration:
            _check_calibration(loaded, recipe.name, recipe.calibration)


def _check_calibration(loaded: LoadedRelease, recipe: str, calibration: Calibration) -> None:
    """Draw from files of one's own as the quantize stage will; named sets are fetched when the release is resolved."""
    local = [source for source in calibration.sources if not source.dataset.startswith(NAMED_SET)]
    root, chat = loaded.configs_root, calibration.chat_template
    samples = [read_source(root / source.dataset, source, chat=chat) for source in local]
    if len(local) < len(calibration.sources):
        return
    try:
        choose_samples(samples, calibration)
    except ConfigError as error:
        raise ConfigError(
            f"recipe {recipe}: {error.message}", where=str(root / error.where), hint=error.hint
        ) from error


def _check_lines(path: Path, field: str, least: int) -> None:
    """Read only as many lines as are asked for: a large file costs no more than a small one."""
    try:
        with path.open(encoding="utf-8") as lines:
            filled = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
            first = list(islice(filled, least))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(path)) from error
    for number, line in first:
        _check_line(line, field, f"{path}:{number}")
    if len(first) < least:
        raise ConfigError(
            f"the release asks for {least} lines, the file has {len(first)}",
            where=str(path),
            hint="add lines, or ask for fewer",
        )


def _check_line(line: str, field: str, where: str) -> None:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"not a JSON object: {error}", where=where) from error
    if not isinstance(row, dict) or not isinstance(row.get(field), str) or not row[field].strip():
        raise ConfigError(f"the line has no text in {field!r}", where=where, hint=f'write {{"{field}": "..."}}')
