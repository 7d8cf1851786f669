"""Configurations of the models that serve a TensorRT-LLM engine in Triton: the in-flight batcher set.

`tensorrt_llm` runs the engine; `preprocessing`, `postprocessing` and `ensemble`, or `tensorrt_llm_bls`, put text
around it. Written through the protobuf that the server itself parses, with the tensors and parameters that NVIDIA's
templates had at TensorRT-LLM 1.2 (`data/inflight_batcher.json`).
"""
