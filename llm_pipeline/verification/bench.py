"""What the steps work on: the host as a target, the prepared checkpoints, and where results go."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from llm_pipeline.artifacts.engine_description import EngineDescription
from llm_pipeline.artifacts.golden import GoldenPrompt, read_golden
from llm_pipeline.artifacts.host_facts import HostFacts
from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.base.errors import Unsupported
from llm_pipeline.base.json_document import load_record, read_object
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.catalog.tables import Gpu, find_container, gpus
from llm_pipeline.config.engine_options import EngineBuildOptions
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.runtime_options import KvCacheOptions, RuntimeOptions
from llm_pipeline.config.target import EngineBuilderName, EngineLimits, Target
from llm_pipeline.engines.builder import BaselinePrecision, BuildInputs
from llm_pipeline.model_facts.reader import context_length
from llm_pipeline.model_facts.words import ConfigWords
from llm_pipeline.verification.installed import InstalledRuntime
from llm_pipeline.verification.report import Seen

PREPARED_FILE = "prepared.json"
CHECKPOINT_DIRECTORY = "checkpoint"
TENSORRT_LLM_DIRECTORY = "tensorrt_llm_checkpoint"
_MEMORY_TOLERANCE = 0.06
_MOST_TOKENS = 512
_TIME_LIMIT_MINUTES = 30.0
_KV_FRACTION = 0.3
"""Small, so that the planned KV cache pool stands out from the rest of the memory."""

_DISTRIBUTIONS = {
    "tensorrt": ("tensorrt", "tensorrt_cu13", "tensorrt_cu12"),
    "torch": ("torch",),
    "modelopt": ("nvidia-modelopt",),
    "transformers": ("transformers",),
    "numpy": ("numpy",),
}


class PreparedCheckpoint(Frozen):
    """One checkpoint, in the directory of its recipe's name, with its golden prompts beside it.

    Attributes:
        recipe: How it was quantized.
        refused: Why it could not be made; empty when it was.
    """

    recipe: QuantizationRecipe
    refused: str = ""

    @property
    def name(self) -> str:
        """The name of its recipe, and of its directory."""
        return self.recipe.name


class Prepared(Frozen):
    """The content of `prepared.json`.

    Attributes:
        model: The hub's name and commit, or what was trained.
        dtype: Precision of the baseline.
        checkpoints: One for each recipe; the first is the baseline, and one is for the engine compiler.
    """

    model: str
    dtype: BaselinePrecision
    checkpoints: tuple[PreparedCheckpoint, ...]

    def write(self, directory: Path) -> None:
        """Write it into the directory of the checkpoints."""
        (directory / PREPARED_FILE).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def read(directory: Path) -> Prepared:
        """Read it.

        Raises:
            IntegrityError: It is missing or not one.
        """
        path = directory / PREPARED_FILE
        return load_record(Prepared, path, "nothing was prepared here")


@dataclass(frozen=True)
class Bench:
    """A host on which the steps run.

    Attributes:
        source: Directory of the prepared checkpoints.
        prepared: What is in it.
        output: Directory for results; engines and servers' logs stay in it.
        host: GPUs and driver.
        runtime: The installed TensorRT-LLM.
        image: The container's base image, as the table of containers names it; empty outside one.
        triton_home: `/opt/tritonserver`, or an unpacked wheel.
        python: Interpreter of the models' code where Triton is a wheel.
        server_environment: Variables that servers are given besides those of production's.
    """

    source: Path
    prepared: Prepared
    output: Path
    host: HostFacts
    runtime: InstalledRuntime
    image: str
    triton_home: Path
    python: Path
    server_environment: Mapping[str, str] = field(default_factory=dict)

    def checkpoint(self, recipe: PreparedCheckpoint) -> Path:
        """Directory of the checkpoint that a recipe made."""
        return self.source / recipe.name / CHECKPOINT_DIRECTORY

    def golden(self, recipe: PreparedCheckpoint) -> list[GoldenPrompt]:
        """The golden prompts of a recipe's checkpoint, with its answers."""
        return read_golden(self.source / recipe.name)

    def engine(self, step: str) -> Path:
        """Where the engine of a step goes."""
        return self.output / "engines" / step / "engine"

    def description(self, step: str) -> EngineDescription | None:
        """The engine of a step; None if it was not built."""
        engine = self.engine(step)
        return EngineDescription.read(engine) if engine.is_dir() else None

    def inputs(
        self, recipe: PreparedCheckpoint, builder: EngineBuilderName, *, minutes: float = _TIME_LIMIT_MINUTES
    ) -> BuildInputs:
        """What an engine of a recipe is built from."""
        ranks = self.source / recipe.name / TENSORRT_LLM_DIRECTORY
        return BuildInputs(
            checkpoint=self.checkpoint(recipe),
            target=self.target(builder, longest_context(self.checkpoint(recipe)), minutes),
            dtype=self.prepared.dtype,
            checkpoint_ref=ArtifactRef(kind="checkpoint", digest=sha256_bytes(recipe.name.encode())),
            tensorrt_llm_checkpoint=ranks if ranks.is_dir() else None,
            golden=self.golden(recipe),
            cache=self.output / "caches",
        )

    def target(self, builder: EngineBuilderName, positions: int, minutes: float = _TIME_LIMIT_MINUTES) -> Target:
        """This host as a target, for requests of at most so many tokens."""
        tokens = min(_MOST_TOKENS, positions)
        return Target(
            name="verification",
            accelerator=this_gpu(self.host).name,
            engine=builder,
            runtime_version=self.runtime.version,
            container=self.image or None,
            limits=EngineLimits(
                maximum_sequences=8,
                maximum_tokens_per_request=tokens,
                maximum_batched_tokens=2 * tokens,
                maximum_queued_requests=16,
            ),
            runtime=RuntimeOptions(kv_cache=KvCacheOptions(free_memory_fraction=_KV_FRACTION)),
            build=EngineBuildOptions(time_limit_minutes=minutes),
        )


def this_gpu(host: HostFacts) -> Gpu:
    """The catalog's entry for the first GPU of a host.

    Raises:
        Unsupported: There is none.
    """
    first = host.gpus[0]
    alike = [gpu for gpu in gpus().values() if gpu.sm == first.sm]
    nearest = min(alike, key=lambda gpu: abs(gpu.usable_bytes - first.memory_bytes), default=None)
    if nearest is None or first.memory_bytes < nearest.usable_bytes * (1 - _MEMORY_TOLERANCE):
        raise Unsupported(
            f"{first.name} ({first.sm}, {first.memory_bytes / 2**30:.0f} GiB) is not in the GPU catalog",
            where="llm_pipeline/catalog/data/gpu_catalog.json",
            hint="add it, with the source of its figures",
        )
    return nearest


def longest_context(checkpoint: Path) -> int:
    """Tokens that a checkpoint in a directory was made for."""
    return context_length(ConfigWords(read_object(checkpoint / "config.json", finite=False)))


def versions(runtime: InstalledRuntime) -> dict[str, str]:
    """Versions of what TensorRT-LLM runs on, as far as their distributions state them."""
    found = {"tensorrt_llm": runtime.version, "python": ".".join(map(str, sys.version_info[:3]))}
    for name, distributions in _DISTRIBUTIONS.items():
        if version := next(filter(None, map(_installed, distributions)), None):
            found[name] = version
    return found


def look_at_container(bench: Bench) -> Seen:
    """Versions against the table of containers, and whether an unprivileged user can work in it."""
    found, recorded = versions(bench.runtime), find_container(bench.image)
    wanted = recorded.model_dump(include={"tensorrt_llm", "tensorrt", "python"}) if recorded else {}
    differences = [
        f"{name} {version} recorded, {found.get(name, 'none')} installed"
        for name, version in wanted.items()
        if version is not None and not found.get(name, "").startswith(version)
    ]
    if os.getuid() == 0:
        differences.append("it runs as root: start the container with --user")
    places = {"HOME": Path.home(), "temporary directory": Path(tempfile.gettempdir())}
    differences += [f"{what} {path} cannot be written" for what, path in places.items() if not os.access(path, os.W_OK)]
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    return Seen(text if recorded else f"{text}; the table of containers does not have {bench.image!r}", differences)


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
