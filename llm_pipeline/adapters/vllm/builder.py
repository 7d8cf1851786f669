"""The `vllm` builder: the checkpoint is served as it is, plain or in modelopt's formats, by vLLM's batching.

Heavy: import it through `engine_builder` only. The build starts vLLM with the batcher that will serve it, answers the
golden prompts and measures. The engine directory holds `engine.json` and what vLLM compiled for this model and GPU, so
that a server does not compile it again.

Which of modelopt's formats vLLM reads is in `QUANT_ALGOS` of its `model_executor/layers/quantization/modelopt.py`
(0.20): anything else is refused here by name, before a GPU is asked.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from llm_pipeline.artifacts.checkpoint_directory import check_directory
from llm_pipeline.artifacts.checkpoint_files import QuantizationMetadata, read_json, read_quantization
from llm_pipeline.artifacts.engine_description import EngineDescription, EngineFacts
from llm_pipeline.artifacts.host_match import require_target_host
from llm_pipeline.artifacts.repository_layout import CHECKPOINT_DIRECTORY
from llm_pipeline.base.confinement import confined
from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.target import Target
from llm_pipeline.engines.batcher_smoke import measured_build, served_limits
from llm_pipeline.engines.builder import BuildInputs
from llm_pipeline.model_facts.reader import context_length
from llm_pipeline.model_facts.words import ConfigWords
from llm_pipeline.serving.models.vllm_batcher import COMPILED_DIRECTORY, Batcher, Settings

log = get_logger(__name__)

_READ = frozenset({"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "MXFP8", "MIXED_PRECISION"})
_READ_KV_CACHES = frozenset({"FP8"})
_VERSIONED = ("torch", "transformers", "tokenizers")
_GRAPH_TOKENS = 1024
"""Steps of up to so many tokens run as CUDA graphs: most steps with a prompt in them. vLLM's own default, twice the
sequences and at most 512, leaves those out: with 45 prompts of 256 tokens a second on an H200, 8B's first token came
after 46 ms, and after 29 with these graphs. They take 0.3 GiB more, and a second more to capture."""


class VllmBuilder:
    """The `vllm` engine builder."""

    def __init__(self) -> None:
        """Find vLLM, without importing it: its own process does.

        Raises:
            ModuleNotFoundError: This interpreter lacks it.
        """
        if find_spec("vllm") is None:
            raise ModuleNotFoundError("No module named 'vllm'", name="vllm")

    def build(self, inputs: BuildInputs, destination: Path) -> EngineFacts:
        quantization = _require_inputs(inputs)
        host = None if inputs.target.accelerator == "cpu" else require_target_host(inputs.target)
        config = read_json(inputs.checkpoint / "config.json")
        context = context_length(ConfigWords(config))
        properties = runtime_properties(inputs.target, inputs.dtype, quantization)
        workspace = destination.parent / f"{destination.name}-workspace"
        log.info("vLLM loads the checkpoint", arguments=properties["arguments"])

        def facts_of(batcher: Batcher) -> dict[str, Any]:
            said = batcher.facts
            return {
                "kv_cache": str(said["kv_cache_dtype"]).replace("auto", inputs.dtype),
                "context_length": context,
                "versions": {"vllm": str(said["vllm"]), **{name: metadata.version(name) for name in _VERSIONED}},
                "details": {"block_tokens": int(said["block_tokens"]), "read_as": str(said["quantization"])},
            }

        facts = measured_build(inputs, lambda: _load(inputs, properties, context, workspace), facts_of, host)
        destination.mkdir()
        _keep_compiled(workspace, destination)
        kept = sum(path.stat().st_size for path in destination.rglob("*") if path.is_file())
        facts = facts.model_copy(update={"bytes": kept})
        EngineDescription(
            facts=facts,
            target=inputs.target,
            runtime_properties=properties,
            host=host,
            checkpoint=inputs.checkpoint_ref,
        ).write(destination)
        return facts


def runtime_properties(target: Target, dtype: str, quantization: QuantizationMetadata) -> dict[str, str]:
    """VLLM's engine arguments, but for the model and the limits, as one JSON text.

    Args:
        target: Where it is served.
        dtype: The baseline's precision.
        quantization: How the checkpoint is quantized; vLLM finds out by itself, but for the KV cache.
    """
    runtime, parallelism = target.runtime, target.parallelism
    arguments: dict[str, Any] = {
        "dtype": dtype,
        "tensor_parallel_size": parallelism.tensor,
        "enable_expert_parallel": parallelism.expert is not None,
        "gpu_memory_utilization": runtime.kv_cache.free_memory_fraction,
        "enable_prefix_caching": runtime.kv_cache.reuse_blocks,
        "kv_cache_dtype": "fp8" if quantization.kv_cache == "FP8" else "auto",
        "enable_chunked_prefill": runtime.chunked_context,
        "enforce_eager": runtime.cuda_graphs is None,
        "generation_config": "vllm",
        "load_format": "safetensors",
        "seed": 0,
        "skip_tokenizer_init": True,
        "trust_remote_code": False,
    }
    if runtime.cuda_graphs is not None and target.accelerator != "cpu":
        arguments["max_cudagraph_capture_size"] = max(_GRAPH_TOKENS, 2 * target.limits.maximum_sequences)
    return {"arguments": json.dumps(arguments, sort_keys=True)}


def _require_inputs(inputs: BuildInputs) -> QuantizationMetadata:
    where = f"targets/{inputs.target.name}.yaml"
    if inputs.target.parallelism.pipeline > 1:
        raise Unsupported(
            "engine vllm is served with tensor parallelism only", where=where, hint="set parallelism.pipeline: 1"
        )
    if inputs.checkpoint_ref is None:
        raise ConfigError("vLLM serves the checkpoint from the store, and this one has no name there")
    quantization = read_quantization(inputs.checkpoint)
    if quantization.algorithm is not None and quantization.algorithm.upper() not in _READ:
        raise Unsupported(
            f"vLLM does not read modelopt's {quantization.algorithm} checkpoints",
            where=str(inputs.checkpoint),
            hint="use fp8, or nvfp4 where the GPU has it; for this format, engine: tensorrt_llm_llmapi",
        )
    if quantization.kv_cache not in (None, *_READ_KV_CACHES):
        raise Unsupported(
            f"vLLM does not read modelopt's KV cache format {quantization.kv_cache}",
            where=str(inputs.checkpoint),
            hint="use kv_cache: fp8 or none in the recipe",
        )
    return quantization


def _load(inputs: BuildInputs, properties: Mapping[str, str], context: int, workspace: Path) -> Batcher:
    settings = Settings.of(properties, served_limits(inputs.target.limits, context))
    settings = Settings(settings.arguments, settings.maximum_tokens_per_request, workspace=workspace)
    check_directory(inputs.checkpoint)
    workspace.mkdir()
    # What vLLM compiles is found again by the model's name, too: it has the one that the server's view gives it.
    checkpoint = workspace / CHECKPOINT_DIRECTORY
    checkpoint.symlink_to(inputs.checkpoint.absolute())
    try:
        # vLLM's processes talk over loopback: they may connect, and read no files but these.
        start = partial(Batcher, checkpoint, settings)
        return confined(start, readable=(inputs.checkpoint, workspace), network=True)
    except (RuntimeError, OSError, ValueError) as error:
        raise Unsupported(
            f"vLLM does not load the checkpoint: {error}", where=str(inputs.checkpoint), hint="see its log"
        ) from error


def _keep_compiled(workspace: Path, destination: Path) -> None:
    """Keep what the model's code was traced to.

    The graphs beside it, which take a server some ten seconds to compile, are found by absolute paths (vLLM 0.20 writes
    them into `vllm_compile_cache.py`), so a copy that vLLM took for its own would name files that are gone. Its single
    artifact with everything (`VLLM_USE_MEGA_AOT_ARTIFACT`) loaded in one place and ended the engine in another with
    torch 2.11, for which it is not meant.
    """
    compiled = Path("torch_compile_cache") / "torch_aot_compile"
    if (workspace / "vllm" / compiled).is_dir():
        shutil.copytree(workspace / "vllm" / compiled, destination / COMPILED_DIRECTORY / compiled)
    shutil.rmtree(workspace)
