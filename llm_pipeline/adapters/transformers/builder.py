"""The `transformers_torch` builder: the checkpoint is served as it is, by Transformers' continuous batching.

Heavy: import it through `engine_builder` only. There is no engine to compile. The build loads the checkpoint once, with
the batcher that will serve it, answers the golden prompts and measures. The engine directory holds `engine.json` alone,
whose `checkpoint` names what is served and whose runtime properties say how.

Quantized checkpoints are refused: Transformers loads modelopt's packed weights without their scales and says nothing,
and weights read back to 16 bit would neither be the format's speed nor round activations as the gate judged them.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from llm_pipeline.artifacts.checkpoint_files import read_json, read_quantization
from llm_pipeline.artifacts.checkpoint_loading import load_confined
from llm_pipeline.artifacts.engine_description import EngineDescription, EngineFacts
from llm_pipeline.artifacts.host_match import require_target_host
from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.target import Target
from llm_pipeline.engines.batcher_smoke import measured_build, served_limits
from llm_pipeline.engines.builder import BuildInputs
from llm_pipeline.model_facts.reader import stated_context
from llm_pipeline.quantization.model_tensors import require_model_tensors
from llm_pipeline.serving.models.transformers_batcher import VARLEN_ATTENTION, Batcher, Settings

log = get_logger(__name__)

SDPA_ATTENTION = "paged|sdpa"
_PLAIN_ATTENTION = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Models whose attention is causal and nothing else, unless their config names a sliding window."""

_GRAPHS_FROM = (5, 17)
"""Earlier versions capture the longest request's length into a graph and replay it for longer ones."""

_VERSIONED = ("torch", "transformers", "tokenizers", "safetensors")


class TransformersTorchBuilder:
    """The `transformers_torch` engine builder."""

    def build(self, inputs: BuildInputs, destination: Path) -> EngineFacts:
        _require_inputs(inputs)
        target, host = inputs.target, None
        if target.accelerator != "cpu":
            host = require_target_host(target)
        require_model_tensors(inputs.checkpoint)
        config = read_json(inputs.checkpoint / "config.json")
        context_length = stated_context(config) or target.limits.maximum_tokens_per_request
        properties = runtime_properties(target, inputs.dtype, config)
        log.info("loading the checkpoint", attention=properties["attention"], cuda_graphs=properties["cuda_graphs"])

        def facts_of(_: Batcher) -> dict[str, Any]:
            own = {"kv_cache": inputs.dtype, "context_length": context_length, "versions": _versions()}
            return {**own, "details": {"peak_memory_bytes": _peak_memory_bytes()}}

        facts = measured_build(inputs, lambda: _load(inputs, properties, context_length), facts_of, host)
        destination.mkdir()
        EngineDescription(
            facts=facts,
            target=target,
            runtime_properties=properties,
            host=host,
            checkpoint=inputs.checkpoint_ref,
        ).write(destination)
        return facts


def runtime_properties(target: Target, dtype: str, config: Mapping[str, Any]) -> dict[str, str]:
    """How the batcher must load a checkpoint so that it computes what was measured.

    Args:
        target: Where it is served.
        dtype: The baseline's precision.
        config: The checkpoint's `config.json`.
    """
    on_gpu = target.accelerator != "cpu"
    plain = config.get("model_type") in _PLAIN_ATTENTION and not _has_windows(config)
    attention = VARLEN_ATTENTION if on_gpu and plain else SDPA_ATTENTION
    version = tuple(int(part) for part in metadata.version("transformers").split(".")[:2])
    graphs = attention == VARLEN_ATTENTION and version >= _GRAPHS_FROM and target.runtime.cuda_graphs is not None
    return {
        "device": "cuda" if on_gpu else "cpu",
        "dtype": dtype,
        "attention": attention,
        "cuda_graphs": str(graphs).lower(),
        "threads": str(target.limits.threads),
    }


def _has_windows(config: Mapping[str, Any]) -> bool:
    return bool(config.get("sliding_window")) and bool(config.get("use_sliding_window", True))


def _require_inputs(inputs: BuildInputs) -> None:
    where = f"targets/{inputs.target.name}.yaml"
    if inputs.target.weight_format != "native":
        raise ConfigError(
            f"weight_format {inputs.target.weight_format} is for the CPU engine", where=where, hint="use native"
        )
    if inputs.target.parallelism.world_size > 1:
        raise Unsupported("transformers_torch serves on one GPU", where=where, hint="use engine: tensorrt_llm_llmapi")
    algorithm = read_quantization(inputs.checkpoint).algorithm
    if algorithm is not None:
        raise Unsupported(
            f"Transformers does not read modelopt's {algorithm} checkpoints: it drops their scales without an error",
            where=str(inputs.checkpoint),
            hint="use weights: none, or engine: tensorrt_llm_llmapi",
        )
    if inputs.checkpoint_ref is None:
        raise ConfigError("Transformers serves the checkpoint from the store, and this one has no name there")


def _load(inputs: BuildInputs, properties: Mapping[str, str], context_length: int) -> Batcher:
    served = served_limits(inputs.target.limits, context_length)
    try:
        return load_confined(inputs.checkpoint, lambda: Batcher(inputs.checkpoint, Settings.of(properties, served)))
    except (RuntimeError, MemoryError, ValueError, OSError) as error:
        raise Unsupported(f"the checkpoint does not load: {error}", where=str(inputs.checkpoint)) from error


def _peak_memory_bytes() -> int:
    """The most that the GPU's tensors took, or on a CPU the process."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes if sys.platform == "darwin" else kilobytes * 1024


def _versions() -> dict[str, str]:
    found = {name: metadata.version(name) for name in _VERSIONED}
    cuda = torch.version.cuda
    return {**found, "cuda": cuda} if cuda else found
