"""A double of TensorRT-LLM, which cannot be installed where these tests run.

What it enforces, from recorded facts:
- the keys and values of `LLM(...)` by the schema of the version in `TRTLLM_DOUBLE_VERSION`, with pydantic's
  way of refusing (a `ValueError` that names each key), and the rules between keys that are written down;
- that the checkpoint is a directory with a config, weights and a tokenizer, in a format that the version reads;
- the names and shapes of `SamplingParams`, `generate`, `generate_async` and what they return (from the project's
  references of its stable API): while it streams, it is one object that changes, as upstream's is.

What it cannot show: anything about GPUs, memory, speed, kernels, or the text that a model really writes. It answers
a prompt with its line of the JSON object in `TRTLLM_DOUBLE_COMPLETIONS`, else with the prompt itself.

Other variables: `TRTLLM_DOUBLE_FAILURE` makes loading fail with that text (`killed` and `hang` do what they
say), and `TRTLLM_DOUBLE_SECONDS_PER_TOKEN` slows generation down.
"""

from __future__ import annotations

import os

from .llm import LLM
from .outputs import CompletionOutput, RequestOutput
from .sampling_params import SamplingParams

__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams"]
__version__ = os.environ.get("TRTLLM_DOUBLE_VERSION", "1.2.1")
