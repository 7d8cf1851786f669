"""Every architecture of the corpus with every recipe that a CPU can make: planned, quantized, built and served.

    python tests/corpus/matrix.py WORK [MODEL ...]   # in the control environment; table.py writes the page

`plan`'s own checks judge each pair first. What they refuse ends there; all else must be quantized, read back, built and
served by a real Triton, with the greedy text of the export that was read back. The worker has the model environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from free_ports import free_port

from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.errors import PipelineError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.planning.release_checks import check_model, check_recipes
from llm_pipeline.planning.sources import look_at_model
from llm_pipeline.planning.target_plan import plan_target
from llm_pipeline.release.loading import LoadedRelease, load_release
from llm_pipeline.serving.client import Generation, GenerationClient, GenerationRequest
from llm_pipeline.serving.model_repository import write_repository
from llm_pipeline.serving.triton_server import RunningServer, start_server, stop_server

ROOT = Path(__file__).parents[2]
CONFIGS, TABLE = ROOT / "configs", ROOT / "docs" / "architectures.md"
MODEL_PYTHON, TRITON = ROOT / ".envs/model/bin/python", ROOT / ".envs/triton"
TOKENS = 12
MODELS = (
    "llama", "llama-odd-widths", "llama-large-vocabulary", "llama-sharded", "llama-tied", "qwen2", "qwen3", "qwen3-moe",
    "mistral-window", "mixtral", "phi3", "gemma2", "gemma3", "gpt2", "gpt-neox", "granite", "olmo2", "smollm3",
    "llama-compressed-tensors", "llama-gptq",
)  # fmt: skip
MIXTURES, WITHOUT_EXPERTS = ("qwen3-moe", "mixtral"), "fp8 without experts"
ACTIVATIONS = {"fp8", "fp8_per_channel_token", "int8_smoothquant", "w4a8_awq", "auto"}
"""Weights whose layers quantize their input: a sum in another order may round it to the other side of a step."""

TOLERATED = 3
"""Answers of the 15 that may differ then; models with random weights have many words that are nearly as likely."""


@dataclass(frozen=True)
class Outcome:
    """What became of one model with one recipe.

    Attributes:
        model: Name in the corpus.
        recipe: Name of the recipe.
        refused: What `plan` says; empty where it refuses nothing.
        failed: What went wrong although `plan` let it through; empty where it works.
        differing: Answers that were not word for word those of the export that was read back.
        asked: Prompts that were asked.
    """

    model: str
    recipe: str
    refused: str = ""
    failed: str = ""
    differing: int = 0
    asked: int = 0


def cpu_recipes() -> dict[str, QuantizationRecipe]:
    """The committed recipes that quantize and need no GPU, one of each kind, with fewer calibration samples."""
    found = {}
    for path in sorted((CONFIGS / "quantization").glob("*.yaml")):
        content = yaml.safe_load(path.read_text())
        if "source" in content:
            continue
        calibration = content.get("calibration")
        if calibration:
            if calibration["sources"] != ["calibration/demo.jsonl"]:
                continue
            calibration |= {"samples": 32, "batch_size": 16}
        if "search" in content:
            content["search"] |= {"effective_bits": [8.0]}
        recipe = QuantizationRecipe(name=path.stem, **content).rungs()[0]
        if not recipe.needs_cuda:
            found[path.stem] = recipe
    return found


class Matrix:
    """The corpus under one directory, and the worker that makes engines of it."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._release = load_release(CONFIGS / "releases" / "demo.yaml")
        self._worker: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            assert self._worker.stdin is not None
            self._worker.stdin.close()
            self._worker.wait(60)

    def make(self, models: Sequence[str]) -> None:
        """Make what is not there of the corpus."""
        if missing := [name for name in models if not (self._work / "corpus" / name).is_dir()]:
            script = [str(MODEL_PYTHON), "-W", "ignore", str(ROOT / "tests/corpus/tiny_models.py")]
            subprocess.run([*script, str(self._work / "corpus"), *missing], check=True, env=_environment())

    def judge(self, model: str, recipes: Mapping[str, QuantizationRecipe]) -> Iterator[Outcome]:
        """What becomes of a model with each recipe."""
        for name, recipe in recipes.items():
            if refused := self._refusal(model, recipe):
                yield Outcome(model, name, refused=refused)
            else:
                yield self._try(model, name, recipe)

    def _refusal(self, model: str, recipe: QuantizationRecipe) -> str:
        """What `plan` says against it, with its advice; empty for nothing."""
        source = f"file://{(self._work / 'corpus' / model).absolute()}"
        release = self._release.release
        asked = release.model.model_copy(update={"source": source, "id": f"corpus/{model}", "sizes": None})
        changed = release.model_copy(update={"model": asked, "recipes": (recipe,)})
        return _refusal(replace(self._release, release=changed))

    def _try(self, model: str, name: str, recipe: QuantizationRecipe) -> Outcome:
        made = self._ask_worker({"model": model, "recipe": recipe.model_dump(mode="json")})
        if "error" in made:
            return Outcome(model, name, failed=made["error"])
        engine = Path(made["engine"])
        try:
            return replace(self._serve(engine, made["expected"], made["context"]), model=model, recipe=name)
        finally:
            shutil.rmtree(engine.parent, ignore_errors=True)

    def _ask_worker(self, job: Mapping[str, Any]) -> dict[str, Any]:
        if self._worker is None:
            command = [str(MODEL_PYTHON), "-W", "ignore", str(ROOT / "tests/corpus/worker.py"), str(self._work)]
            with (self._work / "worker.log").open("a") as log:
                self._worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                                text=True, env=_environment())  # fmt: skip
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.write(json.dumps(job) + "\n")
        self._worker.stdin.flush()
        line = self._worker.stdout.readline()
        return json.loads(line) if line else {"error": f"the worker died, see {self._work}/worker.log"}

    def _serve(self, engine: Path, expected: Sequence[Mapping[str, Any]], context: int) -> Outcome:
        golden = [GoldenPrompt(prompt=one["prompt"], completion=one["text"] or " ", maximum_tokens=TOKENS)
                  for one in expected]  # fmt: skip
        repository, state = engine.parent / "repository", engine.parent / "slot"
        write_repository(engine, golden, {}, self._release.release.target("cpu"), repository,
                         engine_ref=ArtifactRef(kind="engine", digest="e" * 64))  # fmt: skip
        ports = ServerPorts(**{name: free_port() for name in ("http", "grpc", "metrics", "openai")})
        try:
            server = start_server(repository, ports, triton_home=TRITON, python=MODEL_PYTHON, state=state)
            return _compare(server, expected, context)
        except PipelineError as error:
            return Outcome("", "", failed=f"serve: {error.message}")
        finally:
            stop_server(state)


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{ROOT}:{ROOT}/plugins"}


def _refusal(loaded: LoadedRelease) -> str:
    try:
        facts = look_at_model(loaded)[0]
        assert facts is not None
        check_model(loaded, facts)
        check_recipes(loaded, facts)
        planned = plan_target(loaded, loaded.release.target("cpu"), facts).recipes[0]
    except PipelineError as error:
        said = re.sub(r"^\S+: (recipe \S+: )?", "", error.message, flags=re.MULTILINE).replace("\n", "; ")
        return said if "->" in said or not error.hint else f"{said} -> {error.hint}"
    return "" if planned.legal else f"{planned.reason} -> {planned.nearest}"


def _compare(server: RunningServer, expected: Sequence[Mapping[str, Any]], context: int) -> Outcome:
    """Ask all prompts, and one that is too long by a token."""
    longest = max(expected, key=lambda one: one["tokens"])
    room = context - longest["tokens"]

    async def ask() -> tuple[list[Generation], list[Generation]]:
        async with GenerationClient.of(server.endpoint) as client:
            whole = [_request(one["prompt"], TOKENS) for one in expected]
            beyond = [_request(longest["prompt"], room + 1), _request(longest["prompt"] * 2, 1)]
            return (await asyncio.gather(*map(client.generate, whole)),
                    await asyncio.gather(*map(client.generate, beyond)))  # fmt: skip

    answers, beyond = asyncio.run(ask())
    differing = sum(readable(answer.text) != readable(one["text"])
                    for one, answer in zip(expected, answers, strict=True))  # fmt: skip
    failed = next((answer.error for answer in answers if answer.error), "")
    if room != TOKENS:
        failed = f"the longest prompt and its answer are not the context of {context} tokens"
    elif answered := [answer.text for answer in beyond if "exceed" not in answer.error]:
        failed = f"a request beyond the context was answered: {answered[0][:80]!r}"
    return Outcome("", "", failed=failed, differing=differing, asked=len(expected))


def _request(prompt: str, tokens: int) -> GenerationRequest:
    return GenerationRequest(prompt=prompt, maximum_tokens=tokens, ignore_eos=True, allow_empty=True)


def readable(text: str) -> str:
    """The text, with each run of bytes that are no character as one: detokenizers differ in how many they show."""
    return re.sub("\ufffd+", "\ufffd", text)


def works(outcome: Outcome, recipe: QuantizationRecipe) -> bool:
    """Whether it was served as it was judged, as near as its activation quantizers allow."""
    allowed = TOLERATED if recipe.weights in ACTIVATIONS or recipe.kv_cache != "none" else 0
    return not outcome.failed and not outcome.refused and outcome.differing <= allowed


def recipes_for(model: str, recipes: Mapping[str, QuantizationRecipe]) -> dict[str, QuantizationRecipe]:
    """The recipes to try on a model; on a mixture, also what `plan` advises for one."""
    if model not in MIXTURES:
        return dict(recipes)
    exclude = (*recipes["fp8"].exclude, "*experts*")
    return {**recipes, WITHOUT_EXPERTS: recipes["fp8"].model_copy(update={"exclude": exclude})}


def read_outcomes(work: Path) -> dict[tuple[str, str], Outcome]:
    """What an earlier run in this directory found."""
    path = work / "outcomes.jsonl"
    found = [Outcome(**json.loads(line)) for line in path.read_text().splitlines()] if path.is_file() else []
    return {(outcome.model, outcome.recipe): outcome for outcome in found}


def main(arguments: Sequence[str]) -> int:
    """Run what is not known yet of the matrix; 1 where something neither works nor is refused."""
    work, models = Path(arguments[0]).absolute(), arguments[1:] or MODELS
    work.mkdir(parents=True, exist_ok=True)
    known, recipes, wrong = read_outcomes(work), cpu_recipes(), 0
    with Matrix(work) as matrix, (work / "outcomes.jsonl").open("a") as kept:
        matrix.make(models)
        for model in models:
            tried = recipes_for(model, recipes)
            new = {name: recipe for name, recipe in tried.items() if (model, name) not in known}
            for outcome in matrix.judge(model, new):
                kept.write(json.dumps(asdict(outcome)) + "\n")
                kept.flush()
                wrong += not (outcome.refused or works(outcome, tried[outcome.recipe]))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
