"""What `plan` predicts of a GPU's memory, beside what a real model of the same factss takes there.

    python -m benchmarks.gpu.memory --work /tmp/bench

Transformers stands in for TensorRT-LLM: the weights are those of the checkpoint, and the KV cache holds the same
numbers. Each batch is filled with prompts and decodes some tokens; the peak while decoding is held against the
prediction for weights and KV cache. Of the quantized exports, the weights are loaded as they are stored. One line a
goal; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import DynamicCache

from benchmarks.goals import at_most
from benchmarks.gpu.quantize_stage import Bench, prepare, recipe, run_stage
from llm_pipeline.artifacts.host_facts import read_host_facts
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.target import Parallelism
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.model_facts.reader import ModelDocuments, read_facts
from llm_pipeline.planning.memory import kv_bytes_per_token, rank_weight_bytes
from llm_pipeline.quantization.readback import load_model
from llm_pipeline.release.contract import StageFailure

BATCHES = (1, 16, 64)
READ_BACK_BATCH = 16
PROMPT_TOKENS = 1024
DECODED_TOKENS = 64
FORMATS = ("fp8", "nvfp4")
CALIBRATION_SAMPLES = 32
TOLERANCE = 0.10
_GIGABYTE = 1e9


def main() -> int:
    """Load, generate, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="directory of quantize_8b: its model is used")
    parser.add_argument("--formats", nargs="*", default=FORMATS, help="exported, and loaded as they are stored")
    parser.add_argument("--stored-only", action="store_true", help="leave the running model out")
    options = parser.parse_args()
    print(read_host_facts().model_dump_json(), flush=True)
    options.work.mkdir(parents=True, exist_ok=True)
    bench = prepare(options.work, smoke=False)
    facts = facts_of(bench.model)
    goals = [] if options.stored_only else [*_running(bench.model, facts)]
    goals += [met for weights in options.formats for met in _exported(bench, facts, weights)]
    return 0 if all(goals) else 1


def facts_of(checkpoint: Path) -> ModelFacts:
    """What planning needs to know of a checkpoint's `config.json`."""
    return read_facts(ModelDocuments(json.loads((checkpoint / "config.json").read_bytes())))


def _running(source: Path, facts: ModelFacts) -> Iterator[bool]:
    """The unquantized model at work, batch by batch."""
    model = load_model(source, torch.bfloat16, "cuda")
    plain = QuantizationRecipe(name="none", weights="none")
    yield _goal("weights_bfloat16", rank_weight_bytes(facts, plain, Parallelism()), torch.cuda.memory_allocated())
    for batch in BATCHES:
        peak = _peak_while_decoding(model, batch, facts.vocabulary_size)
        yield _goal(f"weights_and_kv_batch_{batch}", _at_work(facts, batch), peak)
    del model
    _empty()


@torch.inference_mode()
def _peak_while_decoding(model: Any, batch: int, vocabulary: int) -> int:
    """Bytes allocated at most while a full batch decodes its last tokens."""
    _empty()
    cache = DynamicCache(config=model.config)
    tokens = torch.randint(4, vocabulary, (batch, PROMPT_TOKENS), device="cuda")
    answer = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
    torch.cuda.synchronize()
    del tokens
    token = answer.logits[:, -1:].argmax(-1)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(DECODED_TOKENS):
        answer = model(token, past_key_values=cache, use_cache=True, logits_to_keep=1)
        token = answer.logits[:, -1:].argmax(-1)
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated())


def _exported(bench: Bench, facts: ModelFacts, weights: str) -> Iterator[bool]:
    """An export: its weights as they lie in their files, as TensorRT-LLM keeps them, and read back, at work."""
    asked = recipe(weights, CALIBRATION_SAMPLES, bench.tokens)
    result, _ = run_stage(bench, asked, bench.place / f"memory-{weights}.log")
    if isinstance(result, StageFailure):
        raise SystemExit(f"{weights}: {result.error.message}")
    ref = result.artifacts["checkpoint"]
    export = bench.artifact(ref)
    held = [load_file(path, device="cuda") for path in sorted(export.glob("*.safetensors"))]
    measured = torch.cuda.memory_allocated()
    del held
    _empty()
    stored = rank_weight_bytes(facts, QuantizationRecipe.model_validate(asked), Parallelism())
    yield _goal(f"weights_{weights}", stored, measured)
    model = load_model(export, torch.bfloat16, "cuda")
    peak = _peak_while_decoding(model, READ_BACK_BATCH, facts.vocabulary_size)
    del model
    _empty()
    yield _goal(f"{weights}_read_back_batch_{READ_BACK_BATCH}", _at_work(facts, READ_BACK_BATCH), peak)


def _at_work(facts: ModelFacts, batch: int) -> int:
    """What is predicted for bfloat16 weights and the KV cache of a batch that has decoded its last token."""
    plain = QuantizationRecipe(name="none", weights="none")
    tokens = batch * (PROMPT_TOKENS + DECODED_TOKENS)
    return rank_weight_bytes(facts, plain, Parallelism()) + tokens * kv_bytes_per_token(facts)


def _goal(name: str, predicted: int, measured: int) -> bool:
    off = abs(predicted / measured - 1)
    print(f"{name}: predicted {predicted / _GIGABYTE:.2f} GB, measured {measured / _GIGABYTE:.2f} GB", flush=True)
    return at_most(f"{name}_off", 100 * off, 100 * TOLERANCE, "%")


def _empty() -> None:
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
