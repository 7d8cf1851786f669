"""Builds OpenVINO engines for CPUs: trace the model once, then store its weights in the target's format.

Heavy: import it through `engine_builder` only. Everything runs in this one process; a checkpoint is traced through
Optimum, its tokenizer is converted with it, and the result answers the golden prompts.

`weight_format: native` keeps the numbers that the accuracy gate judged (see `graph`). The other formats
compress the traced weights again, so their answers may differ: the served-accuracy gate sees what that costs.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import nncf
import openvino as ov
import openvino_genai as genai
import torch
from optimum.exporters.openvino import main_export
from optimum.exporters.tasks import TasksManager
from safetensors.torch import save_file
from transformers.utils import logging as transformers_logging

from llm_pipeline.adapters.openvino.adapter import ADAPTER
from llm_pipeline.adapters.openvino.graph import NativeWeights
from llm_pipeline.artifacts.checkpoint_files import QuantizationMetadata, copy_companions, read_json, read_quantization
from llm_pipeline.artifacts.checkpoint_loading import load_confined
from llm_pipeline.artifacts.engine_description import ENGINE_FILE, EngineDescription, EngineFacts
from llm_pipeline.artifacts.golden import GoldenPrompt, answered, write_golden
from llm_pipeline.artifacts.model_rules import read_model_rules
from llm_pipeline.artifacts.quantized_checkpoint import Checkpoint
from llm_pipeline.artifacts.repository_layout import OPENVINO_FILES, TOKENIZER_FILE
from llm_pipeline.base.errors import Unsupported
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.progress import PhaseClock
from llm_pipeline.catalog.tables import newest_transformers
from llm_pipeline.config.target import EngineLimits, Target
from llm_pipeline.engines.builder import LEAST_GOLDEN_MATCH, BuildInputs, golden_match
from llm_pipeline.model_facts.reader import stated_context

log = get_logger(__name__)

PARITY_PROPERTIES = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}
"""Without all three, the CPU plugin computes in bf16, compresses the KV cache and quantizes activations by itself."""

MODEL_FILE = "openvino_model.xml"
SERVING_FILES = (*(name for name in OPENVINO_FILES if name != ENGINE_FILE), "generation_config.json")
_INT4_GROUP_SIZE = 128
_TASK = "text-generation-with-past"


class OpenVinoCpuBuilder:
    """The `openvino_cpu` engine builder."""

    def build(self, inputs: BuildInputs, destination: Path) -> EngineFacts:
        checkpoint, target = inputs.checkpoint, inputs.target
        quantization = read_quantization(checkpoint)
        if quantization.kv_cache and target.weight_format != "native":
            log.warning(
                "the artifact's KV cache format is not used by this weight format",
                artifact_kv_cache=quantization.kv_cache,
                weight_format=target.weight_format,
            )
        # Plain checkpoints keep the baseline's precision under `native`; everything else starts from fp32.
        keeps = quantization.algorithm is None and target.weight_format == "native"
        precision = getattr(torch, inputs.dtype) if keeps else torch.float32
        clock = PhaseClock()
        with tempfile.TemporaryDirectory(prefix="build-", dir=destination.parent) as scratch:
            source, template = checkpoint, Path(scratch) / "traced"
            with clock.phase("dequantize"):
                if quantization.algorithm is not None:
                    source = Path(scratch) / "dequantized"
                    layers = write_dequantized(checkpoint, source)
                    log.info("dequantized the artifact as the trace's template", algorithm=quantization.algorithm,
                             linears=len(layers), megabytes=_size(source) / 1e6)  # fmt: skip
            with clock.phase("trace"):
                _trace(source, template, precision)
                log.info("traced the model and converted its tokenizer", precision=str(precision),
                         megabytes=_size(template) / 1e6)  # fmt: skip
            with clock.phase("weights"):
                native = _store_weights(checkpoint, quantization, target, template)
            destination.mkdir()
            for name in SERVING_FILES:
                shutil.move(template / name, destination / name)
            if (tokenizer := checkpoint / TOKENIZER_FILE).is_file():
                shutil.copyfile(tokenizer, destination / TOKENIZER_FILE)
        description = _describe(inputs, destination, quantization, native, clock)
        description.write(destination)
        return description.facts


def _trace(source: Path, destination: Path, precision: torch.dtype) -> None:
    """Write the traced model and its converted tokenizer."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # deprecations of the exporter's own calls, and warnings of every trace:
    warnings.simplefilter("ignore", torch.jit.TracerWarning)  # nothing that whoever releases a model could act on
    # The exporter traces an architecture with the Transformers that it was compared with here, too.
    model_type = str(read_json(source / "config.json").get("model_type"))
    with contextlib.suppress(KeyError, ValueError):  # the exporter itself says what it does not know
        constructor = TasksManager.get_exporter_config_constructor(
            "openvino", model_type=model_type, task=_TASK, library_name="transformers"
        ).func
        stated = getattr(constructor, "MAX_TRANSFORMERS_VERSION", None)
        constructor.MAX_TRANSFORMERS_VERSION = newest_transformers(model_type, stated)
    try:
        load_confined(
            source,
            lambda: main_export(
                model_name_or_path=str(source),
                output=destination,
                task=_TASK,
                library_name="transformers",
                convert_tokenizer=True,
                stateful=True,
                trust_remote_code=False,
                local_files_only=True,
                model_loading_kwargs={"torch_dtype": precision, "use_safetensors": True},
            ),
            scratch=destination.parent,
        )
    except ValueError as error:
        raise Unsupported(f"the model cannot be traced for OpenVINO: {error}", where=str(source)) from error
    if missing := [name for name in SERVING_FILES if not (destination / name).is_file()]:
        hint = "the tokenizer must be a fast one that openvino_tokenizers can convert"
        raise Unsupported(f"the exporter made no {', '.join(missing)}", where=str(source), hint=hint)


def _store_weights(
    checkpoint: Path, quantization: QuantizationMetadata, target: Target, template: Path
) -> NativeWeights | None:
    """Rewrite the traced model's weights in the target's format; returns the artifact's own if they were put in."""
    native = None
    if target.weight_format == "native" and quantization.algorithm:
        native = NativeWeights(_read(template), Checkpoint(checkpoint))
        native.install()
        model = native.model
        log.info("put the artifact's packed weights into the graph", linears=len(native.layers),
                 activation_quantizers=len(native.activation_quantizers),
                 kv_cache_quantizers=len(native.kv_quantizers))  # fmt: skip
    elif target.weight_format == "int8":
        model = nncf.compress_weights(_read(template), mode=nncf.CompressWeightsMode.INT8_SYM)
    elif target.weight_format == "int4":
        mode = nncf.CompressWeightsMode.INT4_SYM
        model = nncf.compress_weights(
            _read(template), mode=mode, group_size=_INT4_GROUP_SIZE, ratio=1.0, all_layers=False
        )
    else:
        return None
    if native is None:
        log.warning("the engine compiler quantizes the weights again", weight_format=target.weight_format)
    ov.save_model(model, template / MODEL_FILE, compress_to_fp16=False)
    return native


def _read(directory: Path) -> ov.Model:
    """The model with its weights in memory, so that its files can be replaced."""
    core = ov.Core()
    core.set_property({"ENABLE_MMAP": False})
    return core.read_model(directory / MODEL_FILE)


def _describe(
    inputs: BuildInputs,
    engine: Path,
    quantization: QuantizationMetadata,
    native: NativeWeights | None,
    clock: PhaseClock,
) -> EngineDescription:
    """Record the finished engine's answers and gather its facts."""
    target, rules = inputs.target, read_model_rules(inputs.checkpoint)
    context_length = stated_context(read_json(engine / "config.json")) or target.limits.maximum_tokens_per_request
    properties = {**PARITY_PROPERTIES, "INFERENCE_NUM_THREADS": str(target.limits.threads)}
    properties |= {name: str(value) for name, value in target.runtime.engine_args.items()}
    with clock.phase("load"):
        try:
            pipeline = load_confined(
                engine, lambda: genai.ContinuousBatchingPipeline(engine, scheduler(target.limits), "CPU", properties)
            )
        except RuntimeError as error:
            raise Unsupported(f"the engine does not load: {error}", where=str(engine)) from error
    match = None
    with clock.phase("golden"):
        if inputs.golden:
            texts = answers(pipeline, inputs.golden, rules.end_tokens)
            least = LEAST_GOLDEN_MATCH if target.weight_format == "native" else 0.0
            match = golden_match(inputs.golden, texts, least)
            write_golden(engine, answered(inputs.golden, texts))
    facts = EngineFacts(
        bytes=_size(engine),
        quantization=quantization.algorithm,
        kv_cache="fp8 numbers in f32" if native and native.kv_quantizers else "f32",
        context_length=context_length,
        device=str(ov.Core().get_property("CPU", "FULL_DEVICE_NAME")).strip(),
        versions={name: metadata.version(name) for name in ADAPTER.tools},
        seconds=clock.seconds,
        details={
            "linears_quantized": len(native.layers) if native else 0,
            "activation_quantizers": len(native.activation_quantizers) if native else 0,
            "golden_match_fraction": match,
            "golden_prompts": len(inputs.golden),
        },
    )
    return EngineDescription(facts=facts, target=target, rules=rules, runtime_properties=properties)


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def write_dequantized(source: Path, destination: Path) -> tuple[str, ...]:
    """Write the checkpoint of `source` as an ordinary fp32 one, tokenizer and generation config included.

    `pre_quant_scale` is folded into the weights; activation and KV cache quantizers cannot be kept in an
    ordinary checkpoint.

    Returns:
        Names of the layers that were dequantized.

    Raises:
        IntegrityError: The source is damaged.
        Unsupported: The source's format cannot be read.
    """
    checkpoint = Checkpoint(source)
    weights = {key: checkpoint.tensors[key].float() for key in checkpoint.plain}
    for name in checkpoint.layers:
        weight, factors = checkpoint.weight(name), checkpoint.smoothing(name)
        weights[f"{name}.weight"] = weight if factors is None else weight * factors
    destination.mkdir(parents=True, exist_ok=True)
    contiguous = {key: value.contiguous() for key, value in weights.items()}
    save_file(contiguous, destination / "model.safetensors", {"format": "pt"})
    config = read_json(source / "config.json")
    config.pop("quantization_config", None)
    config["dtype"] = "float32"
    (destination / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    copy_companions(source, destination)
    return checkpoint.layers


def answers(
    pipeline: genai.ContinuousBatchingPipeline, golden: Sequence[GoldenPrompt], end_tokens: Sequence[int]
) -> list[str]:
    """What the engine answers to the golden prompts, greedily."""
    tokenizer, handles = pipeline.get_tokenizer(), []
    for number, prompt in enumerate(golden):
        config = genai.GenerationConfig()
        config.max_new_tokens, config.apply_chat_template = prompt.maximum_tokens, False
        config.stop_token_ids = set(end_tokens)
        handles.append(pipeline.add_request(number, tokenizer.encode(prompt.prompt).input_ids, config))
    while pipeline.has_non_finished_requests():
        pipeline.step()
    generated = [[token for output in handle.read_all() for token in output.generated_ids] for handle in handles]
    texts: list[str] = tokenizer.decode(generated)
    return texts


def scheduler(limits: EngineLimits) -> genai.SchedulerConfig:
    """The in-flight batcher's configuration, as the serving model sets it."""
    config = genai.SchedulerConfig()
    config.max_num_seqs = limits.maximum_sequences
    config.max_num_batched_tokens = limits.maximum_batched_tokens
    if limits.kv_cache_blocks is not None:
        config.num_kv_blocks = limits.kv_cache_blocks
    config.dynamic_split_fuse = True
    config.enable_prefix_caching = False
    return config
