"""The engine builder's port: from a checkpoint and a target to a directory that a server can load.

    builder = engine_builder(target.engine, target.engine_options)
    facts = builder.build(BuildInputs(checkpoint, target, dtype="float16"), destination)

The engine directory holds what serving needs, and `engine.json`: the facts, the target it was built for and the
properties that the runtime must be given so that it computes what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from llm_pipeline.artifacts.engine_description import EngineFacts
from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.artifacts.repository_layout import MODEL_NAME
from llm_pipeline.base.adapters import Adapter, adapter
from llm_pipeline.base.errors import IntegrityError, Unsupported
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.offline import refuse_telemetry
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.quantization import Precision
from llm_pipeline.config.target import EngineModel, Target

log = get_logger(__name__)


@dataclass(frozen=True)
class BuildInputs:
    """What an engine is built from.

    Attributes:
        checkpoint: A Hugging Face checkpoint, plain or exported by modelopt, with its tokenizer.
        target: Where it will run.
        dtype: Precision in which a plain checkpoint is kept by `weight_format: native`.
        checkpoint_ref: The checkpoint's name in the store, for engines that serve it as it is.
        tensorrt_llm_checkpoint: The same weights as a TensorRT-LLM checkpoint, where the recipe exported one.
        golden: Prompts with the answers that the accuracy gate accepted.
    """

    checkpoint: Path
    target: Target
    dtype: Precision = "bfloat16"
    checkpoint_ref: ArtifactRef | None = None
    tensorrt_llm_checkpoint: Path | None = None
    golden: Sequence[GoldenPrompt] = ()


class EngineBuilder(Protocol):
    """The port of engine builders: from a checkpoint to a directory that a server can load."""

    def build(self, inputs: BuildInputs, destination: Path) -> EngineFacts:
        """Build an engine into the new directory `destination`, whose parent exists and has room for scratch files.

        Raises:
            Unsupported: The checkpoint's format or architecture cannot be built this way, or not on this host.
            IntegrityError: The checkpoint is damaged, or the engine does not answer as the checkpoint does.
            BuildFailed: The build's tool failed for a reason that trying again does not change.
            Transient: The build was cut short.
        """


class OwnServer(NamedTuple):
    """A server with OpenAI's API that an engine brings, for a target that wants it in Triton's place.

    Attributes:
        name: The target's `server`.
        program: Its command, which lies beside the interpreter that it is installed for.
        metrics_path: Where it has its Prometheus metrics, on the port of OpenAI's API.
    """

    name: str
    program: str
    metrics_path: str


@dataclass(frozen=True)
class EngineAdapter(Adapter):
    """What an entry point `llm_pipeline.engines` names; see `Adapter`. Its module imports no library of the engine.

    Attributes:
        config: The model of the target's `engine_options`.
        open: The builder, of these options; the engine's libraries are imported when it is called.
        write_repository: Writes what Triton serves of an engine, of `(engine, directory)`: see `PackagedEngine` and
            `write_served_model` in `llm_pipeline.serving.model_repository`. Returns the artifacts that are linked
            instead of copied, by their place in the directory.
        judge: Whether a recipe is legal on a target, of a `FormatQuestion` of `planning.compatibility`; None where
            `problems` and `warnings` of the options say it.
        judge_model: Whether it loads a model, of its `ModelFacts` and the version of Transformers that builds (None
            where that is not known), answered as `judge` is; None where it takes any model.
        warnings: What works on a target, though perhaps not as meant, whatever the recipe; None for nothing.
        runtime: Distribution that runs the engine; reports show its version.
        beside_triton: Whether that distribution must be in the environment that Triton runs the served model in.
        own_server: The server that it brings itself; None for none.
        words: The engine's name in sentences.
        reads: Options that it reads of `runtime` and `build` of a target; `plan` warns of others that are set.
            Options of an option are named one by one (`kv_cache.reuse_blocks`) or all (`kv_cache.*`). It reads the
            whole of a section that is not named.
        tools: Distributions of the build's environment whose versions decide what is built: a part of the stage key.
        scores_prompts: Its served model takes `input_ids` and `echo` with `logprobs`, so that tasks which compare the
            likelihoods of given texts are scored as served, too.
        ranks: How the ranks of an instance start: by the engine `inside` one server; by MPI, in `servers` of their own;
            or by TensorRT-LLM's `launcher`, where they are on several hosts.
        models: The models of its repository, by name.
        compiles_export: It is built from the TensorRT-LLM checkpoint that a recipe exports.
        holds_weights: What is built holds the weights; False where the checkpoint is served from the store.
        start_seconds: How long a server takes to start, as a build does, whatever the model; None where the time of a
            build follows from the weights.
        shares_whole_memory: `free_memory_fraction` is a share of the GPU for weights, runtime and KV cache together;
            where False, the cache's share of what weights and runtime leave.
        runtime_bytes: CUDA context, communication buffers, CUDA graphs and workspaces of one rank; an estimate.
    """

    config: type[EngineModel]
    open: Callable[[Any], EngineBuilder]
    write_repository: Callable[[Any, Path], dict[str, ArtifactRef]]
    judge: Callable[[Any], Any] | None = None
    judge_model: Callable[[Any, str | None], Any] | None = None
    warnings: Callable[[Target], Sequence[str]] | None = None
    runtime: str = ""
    beside_triton: bool = False
    own_server: OwnServer | None = None
    words: str = ""
    reads: Mapping[str, frozenset[str]] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    scores_prompts: bool = False
    ranks: Literal["inside", "servers", "launcher"] = "inside"
    models: tuple[str, ...] = (MODEL_NAME,)
    compiles_export: bool = False
    holds_weights: bool = True
    start_seconds: float | None = None
    shares_whole_memory: bool = False
    runtime_bytes: int = 2 * 2**30


LEAST_GOLDEN_MATCH = 0.5
"""Runtimes differ in kernels and batch sizes, so greedy texts part at near ties; a broken load matches nothing."""


def golden_match(
    golden: Sequence[GoldenPrompt], completions: Sequence[str], least: float = LEAST_GOLDEN_MATCH
) -> float:
    """Share of the golden prompts that were answered as the judged checkpoint did, compared as the probes do.

    Raises:
        IntegrityError: It is less than `least`.
    """
    pairs = list(zip(golden, completions, strict=True))
    different = [(prompt, text) for prompt, text in pairs if len(set(prompt.compared(text))) > 1]
    fraction = 1 - len(different) / len(pairs)
    log.info("compared with the golden prompts", prompts=len(pairs), golden_match_fraction=fraction)
    if fraction < least:
        prompt, text = different[0]
        raise IntegrityError(
            f"the loaded model answers {fraction:.0%} of {len(pairs)} golden prompts as the checkpoint that was judged "
            f"({least:.0%} are needed): to {prompt.prompt!r} it wrote {text!r} "
            f"instead of {prompt.completion!r}",
            hint="the runtime reads the checkpoint in another way: look at its quantization, tokenizer and options",
        )
    return fraction


def engine_adapter(name: str) -> EngineAdapter:
    """What is known of an engine without its libraries.

    Raises:
        ConfigError: No installed package has that engine.
    """
    found: EngineAdapter = adapter("engines", name)
    return found


def own_server_of(target: Target) -> OwnServer | None:
    """The server that a target wants in Triton's place, as its engine brings it; None for Triton."""
    own = engine_adapter(target.engine).own_server
    return own if own is not None and own.name == target.server else None


def engine_builder(name: str, options: EngineModel | None = None) -> EngineBuilder:
    """The builder of that name; its libraries are imported here and not earlier.

    Args:
        name: The target's `engine`.
        options: The target's `engine_options`; None for the defaults.

    Raises:
        ConfigError: No installed package has that engine.
        Unsupported: This interpreter lacks its libraries.
    """
    refuse_telemetry()
    found = engine_adapter(name)
    try:
        return found.open(options or found.config())
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"engine builder {name} needs {error.name}, which this interpreter does not have",
            where="target.environment",
            hint="run the build in the environment that the target is for",
        ) from error
