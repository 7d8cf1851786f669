"""A double of the LLM args' class: its schema is the recorded one of the version, less our marks.

`TRTLLM_DOUBLE_WITHOUT_FIELD` leaves out one top-level key, as a version that dropped it would.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tensorrt_llm.arguments import is_old

_SCHEMAS = Path(__file__).resolve().parents[5] / "llm_pipeline/engines/llm_args/data"


class TorchLlmArgs:
    @classmethod
    def model_json_schema(cls, schema_generator: Any = None) -> dict[str, Any]:  # noqa: ARG003 - pydantic's
        name = "llm_args_1_2" if is_old(os.environ.get("TRTLLM_DOUBLE_VERSION", "1.2.1")) else "llm_args_main"
        schema = _plain(json.loads((_SCHEMAS / f"{name}.json").read_text(encoding="utf-8")))
        schema["properties"].pop(os.environ.get("TRTLLM_DOUBLE_WITHOUT_FIELD"), None)
        return schema


def _plain(node: Any) -> Any:
    if isinstance(node, list):
        return [_plain(one) for one in node]
    if isinstance(node, dict):
        return {key: _plain(value) for key, value in node.items() if not key.startswith("x-")}
    return node
