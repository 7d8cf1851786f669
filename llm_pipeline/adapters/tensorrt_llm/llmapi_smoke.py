"""Loads a checkpoint with TensorRT-LLM's LLM API and answers the golden prompts: a process of its own.

    python -m llm_pipeline.adapters.tensorrt_llm.llmapi_smoke inputs.json smoke.json

TensorRT-LLM holds its GPUs until the process that imported it ends, and starts a worker for each rank: so the build
runs this as a tool, with a time limit, and reads what it writes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module, metadata
from logging import StreamHandler
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.entry import entry_point
from llm_pipeline.base.errors import Unsupported
from llm_pipeline.base.json_document import load_record
from llm_pipeline.base.logging import get_logger, write_readable_lines
from llm_pipeline.base.progress import PhaseClock
from llm_pipeline.base.records import Frozen

log = get_logger(__name__)

_VERSIONED = ("tensorrt", "torch", "transformers", "nvidia-modelopt")


class SmokeInputs(Frozen):
    """What is loaded and asked.

    Attributes:
        arguments: Of `LLM`.
        version: What TensorRT-LLM must be.
        golden: Prompts to answer.
        end_tokens: What ends an answer.
    """

    arguments: dict[str, JsonValue]
    version: str
    golden: tuple[GoldenPrompt, ...]
    end_tokens: tuple[int, ...]


class SmokeReport(Frozen):
    """What the loaded model did.

    Attributes:
        versions: Of TensorRT-LLM and what it runs on, by distribution; `cuda` is the one that torch was built for.
        seconds: By phase: `import`, `load`, `golden`.
        completions: Greedy answers to the golden prompts, in their order.
    """

    versions: dict[str, str]
    seconds: dict[str, float]
    completions: tuple[str, ...]


@entry_point
def main(arguments: Sequence[str] | None = None) -> None:
    """Run the smoke test and write its report; what is refused, by us or by TensorRT-LLM, ends the process."""
    write_readable_lines(StreamHandler(sys.stdout))
    inputs, output = map(Path, sys.argv[1:] if arguments is None else arguments)
    report = run_smoke(load_record(SmokeInputs, inputs, "not the inputs of a smoke test"))
    output.write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")


def run_smoke(inputs: SmokeInputs) -> SmokeReport:
    """Load and answer.

    Raises:
        Unsupported: Another version is installed.
    """
    arguments: dict[str, Any] = dict(inputs.arguments)
    clock = PhaseClock()
    log.info("importing TensorRT-LLM")
    with clock.phase("import"):
        runtime = import_module("tensorrt_llm")
    if runtime.__version__ != inputs.version:
        raise Unsupported(f"TensorRT-LLM {runtime.__version__} is installed, the target is for {inputs.version}")
    log.info("loading the model", ranks=arguments["tensor_parallel_size"] * arguments["pipeline_parallel_size"])
    with clock.phase("load"):
        llm = runtime.LLM(**arguments)
    log.info("answering the golden prompts", prompts=len(inputs.golden), load_seconds=clock.seconds["load"])
    greedy = [
        runtime.SamplingParams(max_tokens=prompt.maximum_tokens, top_k=1, stop_token_ids=list(inputs.end_tokens))
        for prompt in inputs.golden
    ]
    with clock.phase("golden"):
        answers = llm.generate([prompt.prompt for prompt in inputs.golden], greedy, use_tqdm=False)
    return SmokeReport(
        versions=_versions(runtime.__version__),
        seconds=clock.seconds,
        completions=tuple(answer.outputs[0].text for answer in answers),
    )


def _versions(tensorrt_llm: str) -> dict[str, str]:
    found = {"tensorrt_llm": tensorrt_llm}
    for name in _VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    cuda = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None)
    return {**found, "cuda": cuda} if cuda else found


if __name__ == "__main__":
    raise SystemExit(main())
