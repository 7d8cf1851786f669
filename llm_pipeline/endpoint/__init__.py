"""OpenAI's API in front of a Triton server: one small ASGI process, which needs no torch and no Transformers.

    python -m llm_pipeline.endpoint --port 8003 --triton 127.0.0.1:8000 --model repository/llm/1

It renders chats by the checkpoint's own template, asks the model `llm` by `generate_stream`, one stream a request, and
cancels what nobody waits for. What it needs to know of the model is in `endpoint.json`, written by packaging.
"""
