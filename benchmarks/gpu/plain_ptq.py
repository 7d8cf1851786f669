"""The floor of post-training quantization: load, calibrate, export with the libraries' own calls, and nothing else.

python -m benchmarks.gpu.plain_ptq MODEL CALIBRATION.jsonl EXPORT   # prints seconds by phase, as JSON
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer

_BATCH = 16
"""Beyond a batch of 8 of 512 tokens, the calibration pass of an 8B model takes the same time on an H200."""


def main() -> int:
    """Quantize to FP8."""
    model_directory, calibration, export = map(Path, sys.argv[1:])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.zeros(1, device=device)
    seconds: dict[str, float] = {}
    tokenizer = AutoTokenizer.from_pretrained(model_directory)
    texts = [json.loads(line)["text"] for line in calibration.read_text(encoding="utf-8").splitlines()]
    tokens = torch.tensor(tokenizer(texts)["input_ids"])

    begun = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.bfloat16, device_map=device)
    seconds["load"] = _since(begun)

    def forward(chosen: Any) -> None:
        with torch.inference_mode():
            for batch in tokens.split(_BATCH):
                chosen(input_ids=batch.to(device), use_cache=False)

    begun = time.perf_counter()
    forward(model)
    seconds["plain forward"] = _since(begun)
    begun = time.perf_counter()
    mtq.quantize(model, mtq.FP8_DEFAULT_CFG, forward)
    seconds["calibrate"] = _since(begun)
    begun = time.perf_counter()
    with torch.inference_mode():
        export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=export)
    seconds["export"] = _since(begun)
    print(json.dumps(seconds))
    return 0


def _since(begun: float) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(main())
