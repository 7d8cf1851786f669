"""Names that people write in model configurations, and the right ones.

From guides and issues of the field; what is near the right spelling is found without this table.
"""

from __future__ import annotations

PARAMETERS = {
    "batching_strategy": "gpt_model_type (batching_strategy is its name in the template only)",
    "batching_type": "gpt_model_type",
    "enable_trt_overlap": "nothing: the backend no longer reads it",
    "encoder_engine_dir": "encoder_model_path (encoder_engine_dir is its name in the template only)",
    "engine_dir": "gpt_model_path (engine_dir is its name in the template only)",
    "engine_path": "gpt_model_path",
    "kv_cache_free_gpu_memory_fraction": "kv_cache_free_gpu_mem_fraction",
    "kv_cache_size_gb": "kv_cache_free_gpu_mem_fraction (a share) or max_tokens_in_paged_kv_cache (tokens)",
    "max_num_sequences": "max_batch_size of the configuration; the engine's own limit is set when it is built",
    "model_path": "gpt_model_path",
    "num_gpus": "nothing: the engine's ranks are in its config.json, and mpirun starts as many processes",
    "pipeline_parallel_size": "nothing: it is in the engine's config.json",
    "scheduler_policy": "batch_scheduler_policy",
    "tensor_parallel_size": "nothing: it is in the engine's config.json",
    "tokenizer_type": "nothing: the tokenizer's kind is read from tokenizer_dir",
}
"""Parameters of the models of the in-flight batcher set, as written by mistake."""

PARAMETER_PREFIXES = ("tensorrtllm_", "tensorrt_llm_", "trtllm_")
"""What is put before parameters that have no such prefix."""

FIELDS = {
    "priority_queue": "priority_levels, default_priority_level and, for policies by level, priority_queue_policy",
    "priorities": "priority_levels and default_priority_level",
    "decoupled": "model_transaction_policy { decoupled: true }",
    "max_queue_size": "default_queue_policy { max_queue_size: ... } inside dynamic_batching",
    "timeout_action": "default_queue_policy { timeout_action: REJECT } inside dynamic_batching",
    "batch_size": "max_batch_size",
    "instance_groups": "instance_group",
    "inputs": "input",
    "outputs": "output",
}
"""Fields that the configuration's message does not have."""

ENUM_VALUES = {
    "TYPE_BYTES": "TYPE_STRING",
    "BYTES": "TYPE_STRING",
    "TYPE_STR": "TYPE_STRING",
    "TYPE_FLOAT": "TYPE_FP32",
    "TYPE_FLOAT32": "TYPE_FP32",
    "TYPE_FLOAT16": "TYPE_FP16",
    "TYPE_HALF": "TYPE_FP16",
    "TYPE_BFLOAT16": "TYPE_BF16",
    "TYPE_INT": "TYPE_INT32",
}
"""Values of enumerations; BYTES is the data type on the wire, not in configurations."""

TENSORS = {
    "sampling_config": "one input each: temperature, runtime_top_k, runtime_top_p, ...",
    "max_tokens": "request_output_len",
    "max_new_tokens": "request_output_len",
    "max_output_len": "request_output_len",
    "input_length": "input_lengths",
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "stream": "streaming",
    "length_penalty": "len_penalty",
    "stop_words": "stop_words_list",
    "bad_words": "bad_words_list",
    "text_input": "input_ids: this model reads tokens; a preprocessing model makes them",
    "text_output": "output_ids: this model writes tokens; a postprocessing model reads them",
}
"""Tensors of the `tensorrt_llm` model."""

TEMPLATE_VALUES = {
    "triton_backend": "tensorrtllm, or python for its python twin",
    "triton_max_batch_size": "a whole number, the engine's max_batch_size at most",
    "decoupled_mode": "true for streaming, else false",
    "max_queue_delay_microseconds": "0: the engine batches in flight",
    "max_queue_size": "a whole number, 0 for no limit",
    "logits_datatype": "TYPE_FP32, TYPE_FP16 or TYPE_BF16: the engine's logits_dtype",
    "encoder_input_features_data_type": "TYPE_FP16, or TYPE_BF16 for mllama",
    "prompt_embedding_table_data_type": "TYPE_FP16, the same in all models",
    "preprocessing_instance_count": "a whole number, 1 or more",
    "postprocessing_instance_count": "a whole number, 1 or more",
    "bls_instance_count": "a whole number, 1 or more",
}
"""Variables of NVIDIA's templates that are fields, not parameters, and what to write for them."""
