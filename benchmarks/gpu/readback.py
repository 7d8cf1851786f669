"""How long an export of the shapes of Llama-3-8B takes to be read back, and to be validated, and in how much memory.

    python -m benchmarks.gpu.readback [--smoke] [--formats fp8 int4_blockwise ...]

Prints one JSON object a format: seconds to read the export back as a model that scores, seconds to validate it against
its source, all layers compared, peak GPU memory of each, and what validation found.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from transformers import AutoModelForCausalLM

from benchmarks.gpu.llama_8b import LLAMA_3_8B, SMOKE, Shape, write_checkpoint
from llm_pipeline.artifacts.checkpoint_files import copy_companions
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.quantization.modelopt_configs import modelopt_config
from llm_pipeline.quantization.readback import load_model
from llm_pipeline.quantization.validation import validate_export

FORMATS = ("fp8", "int4_blockwise", "nvfp4")
UNCALIBRATED = ("int4_blockwise", "int8_weight_only", "fp8_block", "fp8_per_channel_token", "mxfp4")
CALIBRATION = {"sources": ["set:random"], "samples": 1, "maximum_tokens": 512}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def export(source: Path, recipe: QuantizationRecipe, destination: Path, vocabulary: int) -> None:
    """Quantize with one random sequence, and export."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16, device_map={"": DEVICE})
    tokens = torch.randint(4, vocabulary, (1, 512), device=DEVICE)

    def calibrate(calibrated: Any) -> None:
        with torch.no_grad():
            calibrated(tokens)

    with contextlib.redirect_stdout(io.StringIO()):
        mtq.quantize(model, modelopt_config(recipe), calibrate)
        with torch.inference_mode():
            export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=destination)
    copy_companions(source, destination)


@contextlib.contextmanager
def timed(facts: dict[str, Any], name: str) -> Iterator[None]:
    """Seconds and peak memory (GB) of a block."""
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.monotonic()
    yield
    if DEVICE == "cuda":
        torch.cuda.synchronize()
        facts[f"{name}_peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    facts[f"{name}_seconds"] = round(time.monotonic() - began, 2)


def measure(shape: Shape, formats: list[str]) -> Iterator[dict[str, Any]]:
    """One fact sheet a format."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"
        write_checkpoint(source, shape)
        for name in formats:
            needs = {} if name in UNCALIBRATED else {"calibration": CALIBRATION}
            recipe = QuantizationRecipe.model_validate({"name": name, "weights": name, **needs})
            exported, facts = Path(scratch) / name, {"format": name}
            export(source, recipe, exported, shape.vocabulary)
            with timed(facts, "load"):
                model = load_model(exported, torch.bfloat16, DEVICE)
            with timed(facts, "forward"), torch.no_grad():
                model(torch.randint(4, shape.vocabulary, (8, 256), device=DEVICE))
            del model
            with timed(facts, "validate"):
                found = validate_export(source, exported, recipe, device=DEVICE)
            yield facts | {
                "size_ratio": round(found.size_ratio, 4),
                "expected_ratio": round(found.expected_ratio, 4),
                "compared_layers": found.compared_layers,
                "worst_error": round(found.worst_error, 4),
            }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small shapes: to try this, not to measure")
    parser.add_argument("--formats", nargs="+", default=list(FORMATS))
    arguments = parser.parse_args()
    for facts in measure(SMOKE if arguments.smoke else LLAMA_3_8B, arguments.formats):
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
