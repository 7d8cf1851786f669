"""The part of `tensorrt_llm.llmapi` that is asked for the LLM args."""
