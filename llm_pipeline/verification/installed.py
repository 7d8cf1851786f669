"""The installed TensorRT-LLM: its version and the schema of its LLM args, read in a process of its own.

    python -m llm_pipeline.verification.installed --output installed.json

Importing TensorRT-LLM takes a GPU context and starts MPI, which must not outlive the question.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from llm_pipeline.base.entry import ArgumentParser, entry_point
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.records import Frozen
from llm_pipeline.engines.tool_process import run_tool

_CLASSES = ("TorchLlmArgs", "LlmArgs")
_TIME_LIMIT_SECONDS = 600.0


class InstalledRuntime(Frozen):
    """A TensorRT-LLM.

    Attributes:
        version: What it says of itself.
        llm_args_class: Name of the pydantic class of its LLM args.
        llm_args_schema: That class's JSON schema.
    """

    version: str
    llm_args_class: str
    llm_args_schema: dict[str, Any]


def ask_installed(output: Path) -> InstalledRuntime:
    """What is installed in this interpreter; the answer is left in `output`.

    Raises:
        BuildFailed: It cannot be imported.
        IntegrityError: It does not answer as expected.
    """
    command = [sys.executable, "-m", "llm_pipeline.verification.installed", "--output", str(output)]
    run_tool(command, time_limit_seconds=_TIME_LIMIT_SECONDS)
    try:
        return InstalledRuntime.model_validate_json(output.read_bytes())
    except (OSError, ValidationError) as error:
        raise IntegrityError(f"TensorRT-LLM could not be asked: {error}", where=str(output)) from error


class PlainSchema(GenerateJsonSchema):
    """Takes any value where pydantic has no schema, as for tokenizer objects and callables."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:  # noqa: ARG002
        """The empty schema, which accepts any value."""
        return {}


@entry_point
def main(arguments: Sequence[str] | None = None) -> None:
    """Write version and LLM args schema of the installed TensorRT-LLM."""
    parser = ArgumentParser(prog="installed")
    parser.add_argument("--output", type=Path, required=True)
    output: Path = parser.parse_args(arguments).output
    runtime, module = import_module("tensorrt_llm"), import_module("tensorrt_llm.llmapi.llm_args")
    found = next((name for name in _CLASSES if hasattr(module, name)), None)
    if found is None:
        raise IntegrityError(f"tensorrt_llm.llmapi.llm_args has none of {', '.join(_CLASSES)}")
    schema = getattr(module, found).model_json_schema(schema_generator=PlainSchema)
    answer = InstalledRuntime(version=runtime.__version__, llm_args_class=found, llm_args_schema=schema)
    output.write_text(answer.model_dump_json(indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
