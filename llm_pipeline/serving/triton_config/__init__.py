"""Configurations of the models that serve a TensorRT-LLM engine in Triton: the in-flight batcher set.

`tensorrt_llm` runs the engine; `preprocessing`, `postprocessing` and `ensemble`, or `tensorrt_llm_bls`, put text
around it. Written through the protobuf that the server itself parses, with the tensors and parameters that NVIDIA's
templates had at TensorRT-LLM 1.2 (`data/inflight_batcher.json`).
"""

from __future__ import annotations

from llm_pipeline.serving.triton_config.inflight_batcher import (
    bls_config,
    engine_model_config,
    ensemble_config,
    postprocessing_config,
    preprocessing_config,
)
from llm_pipeline.serving.triton_config.queueing import apply_queue
from llm_pipeline.serving.triton_config.text import config_text, write_config

__all__ = [
    "apply_queue",
    "bls_config",
    "config_text",
    "engine_model_config",
    "ensemble_config",
    "postprocessing_config",
    "preprocessing_config",
    "write_config",
]
