"""NVIDIA's AIConfigurator, where it is installed: its prediction of latency and throughput, as a prior.

    aiconfigurator cli estimate --model-path meta-llama/Llama-3.1-8B --system h200_sxm --backend trtllm \
        --isl 2048 --osl 128 --batch-size 64 --tp-size 1 --pp-size 1

It interpolates kernels that were measured beforehand, takes some seconds, and needs no GPU. It is asked only when
somebody wants it, and never decides anything. `aisimulate` is its new name and brings the same executable.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence

from llm_pipeline.base.errors import Unsupported
from llm_pipeline.base.plain_environment import plain_environment
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.quantization import QuantizationRecipe, WeightFormat
from llm_pipeline.config.target import Target
from llm_pipeline.planning.speed import PUBLISHED, Tokens

TIME_LIMIT_SECONDS = 30.0

_SYSTEMS = {
    "A100-SXM4-40GB": "a100_sxm",
    "A100-SXM4-80GB": "a100_sxm",
    "L40S": "l40s",
    "H100-SXM5-80GB": "h100_sxm",
    "H200-SXM-141GB": "h200_sxm",
    "B200-SXM-180GB": "b200_sxm",
    "GB200": "gb200",
}
"""Its names of GPUs, by those of the catalog."""

_FORMATS: dict[WeightFormat, str | None] = {
    "none": None,  # taken from the model's own config
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "int8_smoothquant": "sq",
    "int8_weight_only": "int8_wo",
    "int4_awq": "int4_wo",
    "nvfp4": "nvfp4",
}
"""Its `--gemm-quant-mode` by ours."""

_NUMBER = r"([0-9][0-9,]*(?:\.[0-9]+)?)"
_FIRST_TOKEN = re.compile(rf"\bTTFT\b[^0-9\n]*{_NUMBER}\s*ms", re.IGNORECASE)
_TOKEN = re.compile(rf"\bTPOT\b[^0-9\n]*{_NUMBER}\s*ms", re.IGNORECASE)
_CHARACTERS_SHOWN = 200


class Prediction(Frozen):
    """AIConfigurator's answer, or why there is none.

    Attributes:
        problem: Why there are no figures; empty when there are.
        first_token_milliseconds: Mean time to the first token.
        token_milliseconds: Mean time between tokens.
        tokens_per_second: Output tokens of all requests together, as follows from the two.
        requests: Requests at a time.
        prompt_tokens: Length of each prompt.
        output_tokens: Length of each answer.
    """

    problem: str = ""
    first_token_milliseconds: float | None = None
    token_milliseconds: float | None = None
    tokens_per_second: float | None = None
    requests: int
    prompt_tokens: int
    output_tokens: int


def installed_command() -> tuple[str, ...] | None:
    """How it is started here; None when it is not installed."""
    if executable := shutil.which("aiconfigurator"):
        return (executable,)
    if importlib.util.find_spec("aiconfigurator") is not None:
        return (sys.executable, "-m", "aiconfigurator.main")
    return None


def predict(
    command: Sequence[str] | None,
    model: str,
    target: Target,
    recipe: QuantizationRecipe,
    *,
    tokens: Tokens = PUBLISHED,
    time_limit_seconds: float = TIME_LIMIT_SECONDS,
) -> Prediction:
    """Ask for one model, recipe and target at all requests that the target holds.

    Args:
        command: As `installed_command` returns it.
        model: Its id on the hub; AIConfigurator brings the configs of well-known ones.
        target: A GPU target.
        recipe: How the model is quantized.
        tokens: Length of each request.
        time_limit_seconds: After that there is no answer.
    """
    asked = Prediction(
        requests=target.limits.maximum_sequences, prompt_tokens=tokens.prompt, output_tokens=tokens.output
    )
    if problem := _cannot_ask(command, target, recipe):
        return asked.model_copy(update={"problem": problem})
    try:
        output = _run([*(command or ()), *_arguments(model, target, recipe, tokens)], time_limit_seconds)
    except Unsupported as error:
        return asked.model_copy(update={"problem": error.message})
    return asked.model_copy(update=_figures(output, asked))


def _cannot_ask(command: Sequence[str] | None, target: Target, recipe: QuantizationRecipe) -> str:
    if command is None:
        return "AIConfigurator is not installed"
    if target.accelerator not in _SYSTEMS:
        return f"AIConfigurator does not know {target.accelerator}"
    return "" if recipe.weights in _FORMATS else f"AIConfigurator does not know {recipe.weights}"


def _run(command: Sequence[str], time_limit_seconds: float) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=time_limit_seconds,
            check=False,
            env=plain_environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise Unsupported(f"AIConfigurator did not answer within {time_limit_seconds:g} s") from error
    except OSError as error:
        raise Unsupported(f"AIConfigurator cannot be started: {error}") from error
    if done.returncode:
        raise Unsupported(f"AIConfigurator failed: {_last_line(done.stderr or done.stdout)}")
    return done.stdout


def _figures(output: str, asked: Prediction) -> dict[str, float | str]:
    """Find the two latencies in the output, whose order and other lines vary."""
    found = [pattern.search(output) for pattern in (_FIRST_TOKEN, _TOKEN)]
    first_token, token = (float(match[1].replace(",", "")) if match else None for match in found)
    if first_token is None or token is None:
        return {"problem": f"AIConfigurator gave no figures: {_last_line(output)}"}
    whole = first_token + (asked.output_tokens - 1) * token
    return {
        "first_token_milliseconds": first_token,
        "token_milliseconds": token,
        "tokens_per_second": 1e3 * asked.requests * asked.output_tokens / whole,
    }


def _arguments(model: str, target: Target, recipe: QuantizationRecipe, tokens: Tokens) -> list[str]:
    split = target.parallelism
    arguments = ["cli", "estimate", "--model-path", model, "--system", _SYSTEMS[target.accelerator]]
    arguments += ["--backend", "trtllm", "--isl", str(tokens.prompt), "--osl", str(tokens.output)]
    arguments += ["--batch-size", str(target.limits.maximum_sequences)]
    arguments += ["--tp-size", str(split.tensor), "--pp-size", str(split.pipeline)]
    if mode := _FORMATS[recipe.weights]:
        arguments += ["--gemm-quant-mode", mode]
    if recipe.kv_cache in ("fp8", "int8"):
        arguments += ["--kvcache-quant-mode", recipe.kv_cache]
    return arguments


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_CHARACTERS_SHOWN] if lines else "it wrote no output"
