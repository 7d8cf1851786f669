"""The table of formats: which weights and KV caches run on which GPU, with which TensorRT-LLM, for which models.

    cells = judge_cells(Selection(accelerators=("B200-SXM-180GB",)))
    sys.stdout.write(format_matrix(cells))

Every cell is what `judge_compatibility` says of a bare recipe on a bare target: the table and the plan cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Literal, NamedTuple, get_args

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import Frozen
from llm_pipeline.catalog.runtime_versions import (
    RELEASE_REPOSITORY,
    known_versions,
    release_numbers,
    version_problem,
)
from llm_pipeline.catalog.tables import containers, find_gpu, gpus
from llm_pipeline.config.quantization import (
    CALIBRATED,
    Calibration,
    CalibrationSource,
    KvCacheFormat,
    QuantizationRecipe,
    WeightFormat,
)
from llm_pipeline.config.target import KvCacheOptions, RuntimeOptions, Target
from llm_pipeline.planning.compatibility import Refused, judge_compatibility
from llm_pipeline.planning.table import indented_columns

Backend = Literal["tensorrt_llm_llmapi", "tensorrt_llm_engine"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)

Verdict = Literal["legal", "partial", "unknown", "illegal"]

_PLAIN_RUNTIME = RuntimeOptions(chunked_context=False, kv_cache=KvCacheOptions(reuse_blocks=False))
"""Asks for nothing that only some formats have."""

_CALIBRATION = Calibration(sources=(CalibrationSource(dataset="any.jsonl"),), samples=1, maximum_tokens=1)


class Cell(Frozen):
    """One format on one GPU with one runtime.

    Attributes:
        format: Of the weights, or of the KV cache as `kv_cache_fp8`.
        architecture: Compute capability of the GPU.
        model: The model or family that NVIDIA's tables of models were asked for, if any.
        why: What stands against it, or is not known; empty when it is legal.
        nearest: The nearest thing that is legal; empty unless it is illegal.
    """

    format: str
    accelerator: str
    architecture: str
    engine: Backend
    version: str
    model: str | None
    verdict: Verdict
    why: tuple[str, ...] = ()
    nearest: str = ""


class Selection(NamedTuple):
    """Which cells are asked for.

    Attributes:
        accelerators: Names in the GPU catalog; all if empty.
        versions: Versions of TensorRT-LLM; those since 1.0 that a known container holds if empty.
        engines: Engine builders.
        models: Models or families of NVIDIA's tables; None stands for what holds of any.
    """

    accelerators: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    engines: tuple[Backend, ...] = BACKENDS
    models: tuple[str | None, ...] = (None,)


def judge_cells(selection: Selection) -> tuple[Cell, ...]:
    """Judge every cell of a selection.

    Raises:
        ConfigError: A GPU or version is unknown; the hint names the nearest.
    """
    accelerators = selection.accelerators or tuple(gpus())
    versions = selection.versions or contained_versions()
    for version in versions:
        if problem := version_problem(version):
            raise ConfigError(problem.reason, hint=problem.nearest)
    return tuple(
        _judge(engine, _bare_target(accelerator, engine, version), recipe, model)
        for model, engine, version, accelerator in product(selection.models, selection.engines, versions, accelerators)
        for recipe in _bare_recipes(engine)
    )


def contained_versions() -> tuple[str, ...]:
    """Versions since 1.0 that a known container holds, newest first."""
    held = {container.tensorrt_llm for container in containers()}
    return tuple(version for version in reversed(known_versions()) if version in held and release_numbers(version)[0])


def _judge(engine: Backend, target: Target, recipe: QuantizationRecipe, model: str | None) -> Cell:
    judged = judge_compatibility(target, recipe, "bfloat16", model)
    cell = Cell(
        format=recipe.name,
        accelerator=target.accelerator,
        architecture=find_gpu(target.accelerator).sm,
        engine=engine,
        version=target.runtime_version or "",
        model=model,
        verdict="illegal",
    )
    if isinstance(judged, Refused):
        return cell.model_copy(update={"why": (judged.reason,), "nearest": judged.nearest})
    verdict: Verdict = "legal" if judged.known == "yes" else judged.known
    return cell.model_copy(update={"verdict": verdict, "why": judged.warnings})


@cache
def _bare_target(accelerator: str, engine: Backend, version: str) -> Target:
    images = [container.image for container in containers() if container.tensorrt_llm == version]
    return Target(
        name="any",
        accelerator=accelerator,
        engine=engine,
        runtime_version=version,
        container=images[0] if images else f"{RELEASE_REPOSITORY}:{version}",
        runtime=_PLAIN_RUNTIME,
    )


@cache
def _bare_recipes(engine: Backend) -> tuple[QuantizationRecipe, ...]:
    """Each format of weights alone, then each of the KV cache alone."""
    weights = [name for name in get_args(WeightFormat) if name not in ("auto", "modelopt", "ready")]
    kv_caches: list[KvCacheFormat] = [name for name in get_args(KvCacheFormat) if name != "none"]
    exported = engine == "tensorrt_llm_engine"
    # No release may ask for an export, or for a KV cache, without a format of weights, but only so do these not decide.
    plain = QuantizationRecipe(name="none", weights="none").model_copy(update={"tensorrt_llm_checkpoint": exported})
    return (
        plain,
        *(
            QuantizationRecipe(
                name=name,
                weights=name,
                calibration=_CALIBRATION if name in CALIBRATED else None,
                tensorrt_llm_checkpoint=exported,
            )
            for name in weights
            if name != "none"
        ),
        *(plain.model_copy(update={"name": f"kv_cache_{name}", "kv_cache": name}) for name in kv_caches),
    )


_WORDS: Mapping[Verdict, str] = {"legal": "yes", "partial": "partial", "unknown": "?", "illegal": "no"}
_ARCHITECTURE, _VERSION = "\0", "\1"


def format_matrix(cells: Sequence[Cell]) -> str:
    """The cells as lines of text, ending with a newline.

    GPUs of one compute capability share a column, as the tables are no finer; versions with equal cells share a block.
    """
    versions: dict[tuple[str | None, str, str], list[Cell]] = {}
    for cell in cells:
        versions.setdefault((cell.model, cell.engine, cell.version), []).append(cell)
    blocks: dict[tuple[object, ...], list[Cell]] = {}
    for (model, engine, _), of_version in versions.items():
        said = tuple((cell.format, cell.accelerator, cell.verdict, *_templates(cell)) for cell in of_version)
        blocks.setdefault((model, engine, said), []).extend(of_version)
    sections = [*(_block(block) for block in blocks.values()), _legend(cells)]
    return "\n".join("\n".join((*section, "")) for section in sections)


def _block(cells: Sequence[Cell]) -> list[str]:
    architectures = sorted({cell.architecture for cell in cells}, key=_number)
    verdicts = {(cell.format, cell.architecture): _WORDS[cell.verdict] for cell in cells}
    formats = dict.fromkeys(cell.format for cell in cells)
    rows = [(name, *(verdicts[name, one] for one in architectures)) for name in formats]
    model = f", {cells[0].model}" if cells[0].model else ""
    return [
        f"{cells[0].engine} {_listed(cell.version for cell in cells)}{model}",
        *indented_columns([("format", *architectures), *rows], numbers_from=len(architectures) + 1),
        *_reasons(cell for name in formats for cell in cells if cell.format == name),
    ]


def _reasons(cells: Iterable[Cell]) -> Iterator[str]:
    """Each reason once, with every compute capability and version that it holds for."""
    held: dict[str, list[Cell]] = {}
    for cell in cells:
        for template in _templates(cell):
            held.setdefault(template, []).append(cell)
    for template, of_reason in held.items():
        architectures = sorted({cell.architecture for cell in of_reason}, key=_number)
        versions = _listed(cell.version for cell in of_reason)
        yield f"  - {template.replace(_ARCHITECTURE, ', '.join(architectures)).replace(_VERSION, versions)}"


def _templates(cell: Cell) -> tuple[str, ...]:
    """The cell's reasons without what differs between GPUs and versions."""
    return tuple(why.replace(cell.architecture, _ARCHITECTURE).replace(cell.version, _VERSION) for why in cell.why)


def _legend(cells: Iterable[Cell]) -> list[str]:
    named: dict[str, dict[str, None]] = {}
    for cell in cells:
        named.setdefault(cell.architecture, {})[cell.accelerator] = None
    return ["GPUs", *(f"  {one}: {', '.join(named[one])}" for one in sorted(named, key=_number))]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _number(architecture: str) -> int:
    return int(architecture.removeprefix("sm"))
