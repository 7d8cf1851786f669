"""vLLM: engines of GPU hosts without TensorRT-LLM."""
