"""Building with the real `trtllm-build`: its flags, what it writes, and what it does with a timing cache."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llm_pipeline.adapters.tensorrt_llm.trtllm_build.command import PROGRAM
from llm_pipeline.adapters.tensorrt_llm.trtllm_build.output_check import CONFIG_FILE
from llm_pipeline.adapters.tensorrt_llm.trtllm_build.progress import blames_timing_cache
from llm_pipeline.artifacts.engine_description import EngineFacts
from llm_pipeline.base.errors import Unsupported
from llm_pipeline.catalog.runtime_versions import engine_problem
from llm_pipeline.config.target import EngineBuilderName
from llm_pipeline.engines import tool_process
from llm_pipeline.engines.builder import engine_builder
from llm_pipeline.verification.bench import Bench, PreparedCheckpoint
from llm_pipeline.verification.comparisons import flag_differences, read_help
from llm_pipeline.verification.report import Seen, Skipped

_BUILDER: EngineBuilderName = "tensorrt_llm_engine"
_HELP_SECONDS = 600
_WIDE = {"COLUMNS": "100000"}
"""One line for each flag: argparse breaks lines at the terminal's width."""


def compare_flags(bench: Bench) -> Seen:
    """The tool's own help against the recorded table; the text is kept as `trtllm-build-help.txt`."""
    _require_engine_path(bench)
    program = shutil.which(PROGRAM)
    if program is None:
        raise Unsupported(f"there is no {PROGRAM} on the PATH of this image")
    answer = subprocess.run(
        [program, "--help"], capture_output=True, text=True, timeout=_HELP_SECONDS, check=True,
        env={**os.environ, **_WIDE},
    )  # fmt: skip
    (bench.output / "trtllm-build-help.txt").write_text(answer.stdout, encoding="utf-8")
    flags = read_help(answer.stdout)
    if not flags:
        raise ValueError(f"{PROGRAM} --help lists no flags: {answer.stdout[:200]!r}")
    return Seen(f"{len(flags)} flags", flag_differences(answer.stdout))


def build(bench: Bench, recipe: PreparedCheckpoint) -> Seen:
    """A build as the build stage does it; the engine's config.json is kept as `engine_config.json`."""
    facts = _build(bench, recipe, "engine_build")
    config = bench.engine("engine_build") / CONFIG_FILE
    shutil.copyfile(config, bench.output / "engine_config.json")
    cache = "" if _caches(bench) else "no timing cache was left"
    return Seen(f"{_describe(facts)}; config.json says what was asked", [cache] if cache else [])


def build_with_cache(bench: Bench, recipe: PreparedCheckpoint) -> Seen:
    """A second build is given the first one's timing cache."""
    if not _caches(bench):
        raise Skipped("engine_build left no timing cache")
    with _lines_about_the_cache() as lines:
        facts = _build(bench, recipe, "engine_timing_cache")
    return Seen(
        f"{_describe(facts)}; it said: {_quoted(lines)}",
        [f"refused: {line}" for line in lines if blames_timing_cache(line)],
    )


def build_with_damaged_cache(bench: Bench, recipe: PreparedCheckpoint) -> Seen:
    """A damaged timing cache costs one failed attempt at most, and is replaced."""
    caches = _caches(bench)
    if not caches:
        raise Skipped("engine_build left no timing cache")
    for cache in caches:
        cache.write_bytes(b"damaged")
    with _lines_about_the_cache() as lines:
        facts = _build(bench, recipe, "engine_damaged_cache")
    kept = [f"{cache.name} is still the damaged one" for cache in _caches(bench) if cache.read_bytes() == b"damaged"]
    return Seen(f"{_describe(facts)}; it said: {_quoted(lines)}", kept)


def _build(bench: Bench, recipe: PreparedCheckpoint, step: str) -> EngineFacts:
    _require_engine_path(bench)
    inputs = bench.inputs(recipe, _BUILDER)
    if inputs.tensorrt_llm_checkpoint is None:
        raise Unsupported(f"there is no TensorRT-LLM checkpoint of {recipe.name}: {recipe.refused or 'none was made'}")
    engine = bench.engine(step)
    engine.parent.mkdir(parents=True)
    return engine_builder(_BUILDER).build(inputs, engine)


def _require_engine_path(bench: Bench) -> None:
    if problem := engine_problem(bench.runtime.version):
        raise Skipped(problem.reason)


def _caches(bench: Bench) -> list[Path]:
    return sorted((bench.output / "caches" / "timing").glob("*.cache"))


def _describe(facts: EngineFacts) -> str:
    return (
        f"{facts.bytes / 1e6:.1f} MB ({facts.details['engine_share_of_checkpoint']} of the checkpoint) in "
        f"{facts.seconds['build']:.0f} s"
    )


@contextmanager
def _lines_about_the_cache() -> Iterator[list[str]]:
    """What the tool writes about its timing cache, while this is entered."""
    lines: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if "timing cache" in text.lower() or blames_timing_cache(text):
                lines.append(text)

    logger, collector = logging.getLogger(tool_process.__name__), Collector()
    logger.addHandler(collector)
    try:
        yield lines
    finally:
        logger.removeHandler(collector)


def _quoted(lines: list[str]) -> str:
    return " / ".join(dict.fromkeys(lines)) or "nothing"
