"""The data files that a release names: enough lines, with what its stages will read."""

from __future__ import annotations

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.loading import LoadedRelease
from llm_pipeline.config.quantization import NAMED_SET, Calibration
from llm_pipeline.loadtest.workload import check_workload, longest_request
from llm_pipeline.quantization.calibration import choose_samples
from llm_pipeline.quantization.calibration_samples import read_source


def check_data_files(loaded: LoadedRelease) -> None:
    """Check the calibration sets, and the load test's prompts and trace.

    Raises:
        ConfigError: A line that would be read is not of its format, there are too few, or the workload's settings
            contradict one another.
    """
    _check_traffic(loaded)
    for recipe in loaded.release.recipes:
        if recipe.calibration:
            _check_calibration(loaded, recipe.name, recipe.calibration)


def _check_traffic(loaded: LoadedRelease) -> None:
    workload = loaded.release.workload
    check_workload(workload, loaded.configs_root)
    longest = longest_request(workload) or 0
    for target in loaded.release.targets:
        if longest > target.limits.maximum_tokens_per_request:
            raise ConfigError(
                f"workload: its longest request may need {longest:,} tokens with its answer, and {target.name} takes "
                f"{target.limits.maximum_tokens_per_request:,}",
                where=str(loaded.path),
                hint="lower the maximum of prompt_tokens or output_tokens, or raise maximum_tokens_per_request",
            )


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
