"""Whether `trtllm-build` made what was asked: all ranks, the right version, and the settings that were given.

TensorRT-LLM looks at none of it when it loads an engine; a server would run with other limits than were tested.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.json_document import read_object
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.target import Target
from llm_pipeline.engines.trtllm_build.checkpoint import BuildCheckpoint
from llm_pipeline.engines.trtllm_build.foreseen import Foreseen, Legal

log = get_logger(__name__)

CONFIG_FILE = "config.json"
_SECTIONS = {"version", "pretrained_config", "build_config"}
_RANK_FILE = re.compile(r"rank(\d+)\.engine")
_SMALLEST_SHARE = 0.3
_USUAL_SHARES = (0.8, 1.5)
"""Engine bytes over checkpoint bytes: a rank's engine holds its weights, and little else."""


def check_engine(directory: Path, target: Target, checkpoint: BuildCheckpoint, foreseen: Foreseen) -> None:
    """Check a finished engine against what was asked.

    Raises:
        IntegrityError: It is incomplete or something else; every problem is named.
    """
    problems = [
        *_rank_problems(directory, checkpoint),
        *_config_problems(directory / CONFIG_FILE, target, checkpoint, foreseen),
    ]
    if problems:
        raise IntegrityError(
            f"the engine's config differs from what was requested: {'; '.join(problems)}",
            where=str(directory),
            hint="see the build's log for what it changed; nothing is published",
        )


def engine_rank_bytes(directory: Path, rank: int) -> int:
    """Size of one rank, with its weights where they are kept apart; 0 where there is none."""
    files = (directory / f"rank{rank}.engine", directory / f"rank{rank}_managed_weights.safetensors")
    return sum(path.stat().st_size for path in files if path.is_file())


def _rank_problems(directory: Path, checkpoint: BuildCheckpoint) -> Iterator[str]:
    wanted = set(range(len(checkpoint.rank_bytes)))
    found = {int(match[1]) for path in directory.iterdir() if (match := _RANK_FILE.fullmatch(path.name))}
    for rank in sorted(wanted - found):
        yield f"rank{rank}.engine is missing"
    for rank in sorted(found - wanted):
        yield f"rank{rank}.engine is there, of {len(wanted)} ranks"
    for rank in sorted(wanted & found):
        yield from _size_problem(directory, rank, checkpoint.rank_bytes[rank])


def _size_problem(directory: Path, rank: int, checkpoint_bytes: int) -> Iterator[str]:
    if not (directory / f"rank{rank}.engine").stat().st_size:
        yield f"rank{rank}.engine is empty"
        return
    share = engine_rank_bytes(directory, rank) / checkpoint_bytes
    if share < _SMALLEST_SHARE:
        yield f"rank{rank} has {share:.0%} of its checkpoint's bytes: weights are missing"
    elif not _USUAL_SHARES[0] <= share <= _USUAL_SHARES[1]:
        log.warning("an engine's size is unusual", rank=rank, share_of_checkpoint=round(share, 3))


def _config_problems(path: Path, target: Target, checkpoint: BuildCheckpoint, foreseen: Foreseen) -> Iterator[str]:
    try:
        config = read_object(path, finite=False)
    except IntegrityError as error:
        yield f"{path.name} cannot be read: {error.message}"
        return
    if set(config) != _SECTIONS:
        yield f"{path.name} does not have exactly {', '.join(sorted(_SECTIONS))}"
        return
    if config["version"] != target.runtime_version:
        yield f"it was built by TensorRT-LLM {config['version']}, the target has {target.runtime_version}"
    yield from _model_problems(config["pretrained_config"], checkpoint)
    build = config["build_config"]
    yield from _differences("build_config", build, foreseen.build)
    yield from _differences("plugin_config", build.get("plugin_config") or {}, foreseen.plugins)


def _model_problems(recorded: Mapping[str, Any], checkpoint: BuildCheckpoint) -> Iterator[str]:
    given = checkpoint.config
    mapping, quantization = recorded.get("mapping") or {}, recorded.get("quantization") or {}
    found = {
        "architecture": recorded.get("architecture"),
        "tp_size": mapping.get("tp_size"),
        "pp_size": mapping.get("pp_size"),
        "world_size": mapping.get("world_size"),
        "quant_algo": quantization.get("quant_algo"),
        "kv_cache_quant_algo": quantization.get("kv_cache_quant_algo"),
    }
    wanted = {
        "architecture": given.architecture,
        "tp_size": given.mapping.tp_size,
        "pp_size": given.mapping.pp_size,
        "world_size": given.mapping.world_size,
        "quant_algo": given.quantization.quant_algo if given.quantization else None,
        "kv_cache_quant_algo": given.kv_algorithm,
    }
    for name, value in wanted.items():
        if found[name] != value:
            yield f"{name} is {found[name]}, the checkpoint's is {value}"


def _differences(section: str, recorded: Mapping[str, Any], wanted: Mapping[str, Legal]) -> Iterator[str]:
    for name, legal in wanted.items():
        if name not in recorded:
            yield f"{section} has no {name}"
        elif not any(_is_same(recorded[name], value) for value in legal):
            yield f"{section}.{name} is {recorded[name]!r}, it should be {legal[0]!r}"


def _is_same(found: Any, wanted: Any) -> bool:
    """Equal, and of the same type: 1 is not true."""
    return type(found) is type(wanted) and found == wanted
