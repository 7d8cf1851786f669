"""Loads a checkpoint with TensorRT-LLM's LLM API, answers the golden prompts and measures: a process of its own.

    python -m llm_pipeline.adapters.tensorrt_llm.llmapi_smoke --args llm_args.yaml --checkpoint DIR \
        --golden golden.jsonl \
        --expect-version 1.2.1 --output smoke.json

TensorRT-LLM holds its GPUs until the process that imported it ends, and starts a worker for each rank: so the build
runs this as a tool, with a time limit, and reads what it writes.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module, metadata
from logging import StreamHandler
from pathlib import Path
from typing import Any

import yaml

from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.artifacts.model_rules import read_model_rules
from llm_pipeline.base.entry import ArgumentParser, entry_point
from llm_pipeline.base.errors import IntegrityError, Unsupported
from llm_pipeline.base.json_document import read_object
from llm_pipeline.base.logging import get_logger, write_readable_lines
from llm_pipeline.base.records import Frozen
from llm_pipeline.engines.builder import PhaseClock

log = get_logger(__name__)

_MEASURED_TOKENS = 128
"""Of prompt and of output, as in NVIDIA's own tables of throughput."""

_MOST_SEQUENCES = 64
_DEFAULT_LENGTH = 2048
_VERSIONED = ("tensorrt", "torch", "transformers", "nvidia-modelopt")


class SmokeReport(Frozen):
    """What the loaded model did.

    Attributes:
        versions: Of TensorRT-LLM and what it runs on, by distribution; `cuda` is the one that torch was built for.
        seconds: By phase: `import`, `load`, `warm_up`, `golden`, `measure`.
        completions: Greedy answers to the golden prompts, in their order.
        single_stream_tokens_per_second: Output rate of one request alone.
        batched_tokens_per_second: Output rate of `batched_sequences` requests together.
    """

    versions: dict[str, str]
    seconds: dict[str, float]
    completions: tuple[str, ...]
    single_stream_tokens_per_second: float
    batched_tokens_per_second: float
    batched_sequences: int


@entry_point
def main(arguments: Sequence[str] | None = None) -> None:
    """Run the smoke test and write its report; what is refused, by us or by TensorRT-LLM, ends the process."""
    write_readable_lines(StreamHandler(sys.stdout))
    parser = ArgumentParser(prog="llmapi_smoke")
    parser.add_argument("--args", type=Path, required=True, help="LLM-args file")
    parser.add_argument("--checkpoint", type=Path, required=True, help="directory that takes the place of its `model`")
    parser.add_argument("--golden", type=Path, required=True, help="golden prompts, one JSON object a line")
    parser.add_argument("--expect-version", required=True, help="what TensorRT-LLM must be")
    parser.add_argument("--output", type=Path, required=True, help="where the report goes")
    options = parser.parse_args(arguments)
    lines = options.golden.read_text(encoding="utf-8").split("\n")[:-1]
    golden = [GoldenPrompt.model_validate_json(line) for line in lines]
    document = yaml.safe_load(options.args.read_text(encoding="utf-8"))
    report = run_smoke(
        {**document, "model": str(options.checkpoint)},
        options.expect_version,
        golden,
        vocabulary=_vocabulary(options.checkpoint),
        end_tokens=read_model_rules(options.checkpoint).end_tokens,
    )
    options.output.write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")


def run_smoke(
    arguments: Mapping[str, Any],
    version: str,
    golden: Sequence[GoldenPrompt],
    *,
    vocabulary: int,
    end_tokens: Sequence[int],
) -> SmokeReport:
    """Load, warm up, answer and measure.

    Args:
        arguments: Of `LLM`.
        version: What TensorRT-LLM must be.
        golden: Prompts to answer.
        vocabulary: Tokens that the model knows.
        end_tokens: What ends an answer.

    Raises:
        Unsupported: Another version is installed.
        IntegrityError: The model stops before it has written the tokens that it must.
    """
    clock = PhaseClock()
    log.info("importing TensorRT-LLM")
    with clock.phase("import"):
        runtime = import_module("tensorrt_llm")
    if runtime.__version__ != version:
        raise Unsupported(f"TensorRT-LLM {runtime.__version__} is installed, the target is for {version}")
    log.info("loading the model", ranks=arguments["tensor_parallel_size"] * arguments["pipeline_parallel_size"])
    with clock.phase("load"):
        llm = runtime.LLM(**arguments)
    log.info("loaded, warming up", load_seconds=clock.seconds["load"])
    session = _Session(llm, runtime.SamplingParams, arguments.get("max_seq_len") or _DEFAULT_LENGTH, vocabulary)
    with clock.phase("warm_up"):
        session.rate(1)
    log.info("answering the golden prompts", prompts=len(golden))
    with clock.phase("golden"):
        completions = session.answer(golden, end_tokens)
    sequences = min(arguments.get("max_batch_size") or 1, _MOST_SEQUENCES)
    log.info("measuring", sequences=sequences)
    with clock.phase("measure"):
        single, batched = session.rate(1), session.rate(sequences)
    log.info("measured", single_stream_tokens_per_second=single, batched_tokens_per_second=batched)
    return SmokeReport(
        versions=_versions(runtime.__version__),
        seconds=clock.seconds,
        completions=completions,
        single_stream_tokens_per_second=single,
        batched_tokens_per_second=batched,
        batched_sequences=sequences,
    )


class _Session:
    """A loaded model, and how it is asked."""

    def __init__(self, llm: Any, sampling_params: Any, length: int, vocabulary: int) -> None:
        self._llm, self._sampling_params = llm, sampling_params
        self._tokens = min(_MEASURED_TOKENS, length // 2)
        self._vocabulary = vocabulary
        self._draw = random.Random(0)  # noqa: S311 - prompts of a measurement

    def answer(self, golden: Sequence[GoldenPrompt], end_tokens: Sequence[int]) -> tuple[str, ...]:
        """The greedy completions of prompts."""
        greedy = [
            self._sampling_params(max_tokens=prompt.maximum_tokens, top_k=1, stop_token_ids=list(end_tokens))
            for prompt in golden
        ]
        answers = self._llm.generate([prompt.prompt for prompt in golden], greedy, use_tqdm=False)
        return tuple(answer.outputs[0].text for answer in answers)

    def rate(self, sequences: int) -> float:
        """Output tokens a second of requests that start together, each with its own prompt, prompts included."""
        prompts = [[self._draw.randrange(self._vocabulary) for _ in range(self._tokens)] for _ in range(sequences)]
        params = self._sampling_params(max_tokens=self._tokens, top_k=1, ignore_eos=True)
        started = time.monotonic()
        answers = self._llm.generate(prompts, params, use_tqdm=False)
        seconds = time.monotonic() - started
        produced = sum(len(answer.outputs[0].token_ids) for answer in answers)
        if produced != sequences * self._tokens:
            raise IntegrityError(f"the model wrote {produced} tokens where {sequences * self._tokens} were requested")
        return round(produced / seconds, 1)


def _versions(tensorrt_llm: str) -> dict[str, str]:
    found = {"tensorrt_llm": tensorrt_llm}
    for name in _VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    cuda = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None)
    return {**found, "cuda": cuda} if cuda else found


def _vocabulary(checkpoint: Path) -> int:
    config = read_object(checkpoint / "config.json", finite=False)
    size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    if not isinstance(size, int):
        raise IntegrityError("config.json does not say vocab_size", where=str(checkpoint))
    return size


if __name__ == "__main__":
    raise SystemExit(main())
