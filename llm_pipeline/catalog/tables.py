"""Facts that planning rests on: GPUs, runtime releases, containers, which format runs where and of which models.

The tables are package data with their sources inside (`catalog/data/*.json`); nothing is fetched.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from llm_pipeline.base.errors import ConfigError

Column = Literal["engine_1_2", "pytorch_1_2", "pytorch_main"]
"""A TensorRT-LLM backend and version range of the support matrix."""

_DRIVER_SHARE = 0.02
"""Memory that the driver keeps from the nominal size, where no measured figure is known."""


class _Fact(BaseModel):
    """A row of a table; a table may hold more columns than are used here."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # not `Frozen`, which refuses those columns


class Gpu(_Fact):
    """One GPU of the catalog.

    Attributes:
        sm: Compute capability, e.g. `sm90`.
        memory_gib: Nominal memory.
        memory_mib_usable: What the driver was seen to report, if known.
        mem_bw_gb_s: Memory bandwidth in GB/s.
        dense_tflops: Peak of the tensor cores without sparsity, by `bf16`, `fp8` and `fp4`; None where they have none.
        int8_tops_dense: The same for INT8, if known.
    """

    name: str
    sm: str
    memory_gib: float
    memory_mib_usable: float | None = None
    mem_bw_gb_s: float
    dense_tflops: dict[str, float | None]
    int8_tops_dense: float | None = None
    source: str

    @property
    def usable_bytes(self) -> int:
        """Memory that a process can be given, in bytes."""
        if self.memory_mib_usable is not None:
            return int(self.memory_mib_usable * 2**20)
        return int(self.memory_gib * (1.0 - _DRIVER_SHARE) * 2**30)


class Container(_Fact):
    """One serving container.

    Attributes:
        image: Image with its tag.
        tensorrt_llm: Version of TensorRT-LLM inside.
        cuda: Version of CUDA inside, if known.
        driver: Driver it was built for, if known.
    """

    image: str
    tensorrt_llm: str
    cuda: str | None = None
    driver: str | None = None

    @property
    def oldest_driver(self) -> str | None:
        """First driver branch that its CUDA runs on by minor version compatibility, if known."""
        branches: dict[str, str] = read_table("version_matrix")["cuda_drivers"]["first_by_major"]
        return branches.get((self.cuda or "").partition(".")[0])


class SupportCell(_Fact):
    """Whether a format runs on a GPU generation with one backend, and how that is known."""

    value: Literal["yes", "no", "partial", "unknown"]
    why: str


class ReadyFormat(_Fact):
    """How engines read a format of checkpoints that another tool than modelopt quantized.

    Attributes:
        computed_by: The first and the last compute capability whose cores multiply it; None where it is unpacked.
        vllm_below: The compute capability from which on vLLM refuses it.
        vllm_why: The evidence.
        cpu: Whether vLLM's build for CPUs runs it.
        cpu_needs: The processor's instructions that its kernels there are written in, as Linux names them; empty for
            those that every processor has which vLLM runs on.
        row: Its row in the support matrix; empty for none.
        tensorrt_llm: Whether the LLM API reads it, by backend.
    """

    computed_by: tuple[int, int] | None = None
    vllm_below: int = 1000
    vllm_why: str = ""
    cpu: Literal["yes", "no", "unknown"]
    cpu_needs: str = ""
    row: str
    tensorrt_llm: dict[Column, SupportCell]


def find_ready_format(name: str) -> ReadyFormat | None:
    """A format by its name in `ModelFacts.stored_format`; None where the table has no entry."""
    row = read_table("ready_formats")["formats"].get(name)
    return None if row is None else ReadyFormat.model_validate(row)


def find_gpu(name: str) -> Gpu:
    """The GPU of that exact name.

    Raises:
        ConfigError: The catalog has no such GPU; the hint names the nearest ones.
    """
    known = gpus()
    if name not in known:
        raise ConfigError(f"unknown accelerator {name!r}", hint=f"did you mean {' or '.join(_near(name, known))}?")
    return known[name]


def find_container(image: str) -> Container | None:
    """The known container of an image, by its tag; a digest and the registry of a mirror make no difference."""
    tagged = _tagged(image)
    return next((known for known in containers() if _tagged(known.image) == tagged), None)


@cache
def gpus() -> dict[str, Gpu]:
    """The catalog's GPUs by name."""
    return {row["name"]: Gpu.model_validate(row) for row in read_table("gpu_catalog")["gpus"]}


@cache
def containers() -> tuple[Container, ...]:
    """The containers that TensorRT-LLM is known to come in, newest first."""
    return tuple(Container.model_validate(row) for row in read_table("version_matrix")["containers"])


@cache
def runtime_releases() -> tuple[str, ...]:
    """The releases of TensorRT-LLM, oldest first."""
    return tuple(row["version"] for row in read_table("version_matrix")["tensorrt_llm"])


def find_support(sm: str, row: str, column: Column) -> SupportCell:
    """One cell of the support matrix; a cell that it does not have is `unknown`."""
    table = read_table("quant_support_matrix")
    generation = table["same_as"].get(sm, sm)
    cell = table["matrix"].get(generation, {}).get(row, {}).get(column)
    if cell is None:
        return SupportCell(value="unknown", why=f"the support matrix has no entry for {row} on {sm}")
    return SupportCell.model_validate(cell)


def find_reader_support(algorithm: str, column: Column) -> SupportCell:
    """Whether a TensorRT-LLM backend reads checkpoints of modelopt's name for a format."""
    table = read_table("checkpoint_reader")
    if algorithm in table["members"]:
        return SupportCell(value="yes", why="a member of QuantAlgo")
    cell = table["others"].get(algorithm, {}).get(column)
    return SupportCell.model_validate(cell or {"value": "unknown", "why": f"nothing is known of {algorithm}"})


def modelopt_algorithms() -> frozenset[str]:
    """Modelopt's names of the formats whose checkpoints this package reads."""
    table = read_table("checkpoint_reader")
    return frozenset(table["members"]) | frozenset(table["others"])


def find_family(model_id: str) -> str | None:
    """The row of NVIDIA's tables of models that a model belongs to; None where none of them is known to hold it."""
    if model_id in _families():
        return model_id
    name = model_id.rpartition("/")[2].lower()
    for family, row in _families().items():
        if any(fnmatchcase(name, pattern) for pattern in row["models"]):
            return family
    return None


def lists_format(family: str, row: str, column: Column) -> bool:
    """Whether NVIDIA lists or tests a format, by its row in the support matrix, for a family of models."""
    listed = _families()[family]
    return row in (*listed["engine" if column == "engine_1_2" else "pytorch"], *listed["tested"])


@cache
def _families() -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in read_table("model_support")["families"]}


def _tagged(image: str) -> str:
    """Repository name and tag, without registry and digest."""
    return image.partition("@")[0].rpartition("/")[2]


@cache
def read_table(name: str) -> dict[str, Any]:
    """A table of the package's data, as it is written: `catalog/data/<name>.json`."""
    text = files("llm_pipeline.catalog").joinpath("data", f"{name}.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def _near(name: str, known: dict[str, Gpu]) -> list[str]:
    """Names that hold the asked one ("h100"), else those spelled alike, else all."""
    lowered = {candidate.lower(): candidate for candidate in known}
    asked = name.lower()
    parts = [found for low, found in lowered.items() if asked in low or low.split("-")[0] in asked]
    alike = [lowered[low] for low in difflib.get_close_matches(asked, lowered, n=3, cutoff=0.4)]
    return parts or alike or list(known)


TRACED_WITH: Mapping[str, str] = {"gemma": "5.5.4", "gemma2": "5.5.4", "gemma3_text": "5.5.4"}
"""By architecture: the newest Transformers that the CPU engine's exporter traces it with.

The exporter refuses anything newer than its authors tried. These are traced right all the same: the tests of the corpus
compare what such engines answer with what Transformers itself does, token by token, over windows and up to the end of
the context.
"""


def newest_transformers(model_type: str, stated: str | None) -> str | None:
    """The newest Transformers for an architecture; None for any.

    Args:
        model_type: The architecture.
        stated: What the exporter says.
    """
    return None if stated is None else TRACED_WITH.get(model_type, stated)
