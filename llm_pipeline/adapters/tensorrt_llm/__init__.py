"""TensorRT-LLM: the LLM API, and engines of trtllm-build."""
