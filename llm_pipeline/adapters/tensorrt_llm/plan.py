"""What `plan` says of TensorRT-LLM's engines, by NVIDIA's tables and the checks of their builders. Pure.

A format needs two things: kernels on that generation (the support matrix), and a reader that knows the name under
which modelopt exports it. The worse of the two counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from llm_pipeline.adapters.tensorrt_llm.trtllm_build import PROGRAM, command_problems
from llm_pipeline.adapters.tensorrt_llm.versions import version_refusal, version_warnings
from llm_pipeline.artifacts.checkpoint_files import MIXED
from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.catalog.runtime_versions import release_numbers
from llm_pipeline.catalog.tables import (
    Column,
    SupportCell,
    containers,
    find_family,
    find_gpu,
    find_reader_support,
    find_ready_format,
    find_support,
    lists_format,
    read_table,
)
from llm_pipeline.config.quantization import WEIGHT_FORMATS, KvCacheFormat, Precision, QuantizationRecipe, WeightFormat
from llm_pipeline.config.target import Target
from llm_pipeline.engines.llm_args.rendering import render_llm_args
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.compatibility import (
    OFFERED,
    OTHER_CHECKPOINT,
    OTHER_ENGINE,
    FormatQuestion,
    Legal,
    Refused,
    Support,
    changes,
    gpu_target_refusal,
    legal,
)
from llm_pipeline.quantization.tensorrt_llm_checkpoint import refuse_unsupported_tensorrt_llm_checkpoint
from llm_pipeline.serving.launch_plan import nodes_of, require_launchable

if TYPE_CHECKING:
    from llm_pipeline.engines.llm_args.checking import LlmArgsCheck


def target_refusal(target: Target) -> Refused | None:
    """Why no engine can be built for a target with TensorRT-LLM, or served there, whatever the recipe.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    if target.engine == "tensorrt_llm_engine":
        if (target.parallelism.expert or 1) > 1:
            nearest = "no parallelism.expert, or engine: tensorrt_llm_llmapi"
            return Refused(reason="engines do not spread experts", nearest=nearest)
        if problems := command_problems(target):
            nearest = "correct them under build.flags, limits and runtime"
            return Refused(reason=f"{PROGRAM}: {'; '.join(problems)}", nearest=nearest)
    else:
        try:
            _check(target).require(f"targets/{target.name}.yaml")
        except (ConfigError, Unsupported) as error:
            nearest = error.hint or "correct limits, parallelism and runtime of the target"
            return Refused(reason=error.message, nearest=nearest)
    hosts = tuple(f"host-{number}" for number in range(nodes_of(target)))  # which they are is said when it is started
    try:
        require_launchable(target, host_names=hosts)
    except Unsupported as error:
        return Refused(reason=error.message, nearest="correct gpus_per_node and parallelism of the target")
    return None


def llm_args_warnings(target: Target) -> tuple[str, ...]:
    """What the version of a target with the LLM API takes, though perhaps not as meant."""
    return tuple(f"LLM args: {warning}" for warning in _check(target).warnings)


def _check(target: Target) -> LlmArgsCheck:
    from llm_pipeline.engines.llm_args.checking import check_llm_args  # jsonschema takes a tenth of a second

    return check_llm_args(render_llm_args(target, checkpoint=None), target.runtime_version or "")


class Platform(NamedTuple):
    """A GPU generation under one backend of TensorRT-LLM.

    Attributes:
        family: Family of the model, for NVIDIA's tables of models; None for what holds of any.
    """

    sm: str
    column: Column
    family: str | None = None

    @property
    def backend(self) -> str:
        """The backend in words."""
        return {
            "engine_1_2": "TensorRT engines",
            "pytorch_1_2": "TensorRT-LLM 1.x",
            "pytorch_main": "TensorRT-LLM 1.3 and later",
        }[self.column]


def platform_of(target: Target, model_id: str | None = None) -> Platform:
    """The GPU generation and the backend of a target with TensorRT-LLM, and the model's family.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    return Platform(find_gpu(target.accelerator).sm, _column(target), find_family(model_id) if model_id else None)


def _column(target: Target) -> Column:
    if target.engine == "tensorrt_llm_engine":
        return "engine_1_2"
    return "pytorch_1_2" if release_numbers(target.runtime_version or "") < (1, 3) else "pytorch_main"


def weights_support(platform: Platform, weights: WeightFormat, dtype: Precision, *, mixed: bool = False) -> Support:
    """Kernels and readers for one format; `none` is the baseline's own precision."""
    facts = WEIGHT_FORMATS.get(weights)
    row = facts.row if facts else "fp16" if dtype == "float16" else "bf16"
    read = [_read(platform, weights, name) for name in (facts and facts.algorithm, MIXED if mixed else None)]
    listed = Support("yes", "") if weights == "none" else _listed(platform, row, f"{weights} weights")
    return reduce(worse, (*read, listed), _hardware(platform, row, weights))


def worse(first: Support, second: Support) -> Support:
    """Whichever of the two says less; the first of equals."""
    order = ("yes", "partial", "unknown", "no")
    return max(first, second, key=lambda support: order.index(support.value))


def kv_support(platform: Platform, kv_cache: KvCacheFormat) -> Support:
    """Whether a KV cache format runs."""
    if kv_cache == "none":
        return Support("yes", "")
    row, what = f"kv_{kv_cache}", f"an {kv_cache} KV cache"
    return worse(_hardware(platform, row, what), _listed(platform, row, what))


def legal_weights(platform: Platform, dtype: Precision) -> tuple[WeightFormat, ...]:
    """The formats that are known to run."""
    return tuple(name for name in OFFERED if weights_support(platform, name, dtype).value == "yes")


def legal_kv_caches(platform: Platform) -> tuple[KvCacheFormat, ...]:
    """The KV cache formats that are known to run."""
    return tuple(name for name in get_args(KvCacheFormat) if kv_support(platform, name).value == "yes")


def _read(platform: Platform, weights: WeightFormat, name: str | None) -> Support:
    if name is None:
        return Support("yes", "")
    cell = find_reader_support(name, platform.column)
    if cell.value == "no":
        return Support("no", f"{weights} checkpoints are not read by {platform.backend} ({name} is {cell.why})")
    return Support(cell.value, _in_tables(f"{weights} checkpoints ({name}) read by {platform.backend}", cell))


def _hardware(platform: Platform, row: str, what: str) -> Support:
    cell = find_support(platform.sm, row, platform.column)
    if cell.value == "no":
        return Support("no", f"{what} does not run on {platform.sm} with {platform.backend} ({cell.why})")
    return Support(cell.value, _in_tables(f"{what} on {platform.sm} with {platform.backend}", cell))


def _listed(platform: Platform, row: str, what: str) -> Support:
    if platform.family is None or lists_format(platform.family, row, platform.column):
        return Support("yes", "")
    return Support("unknown", f"{what} of {platform.family} models are in no table of NVIDIA's for {platform.backend}")


def _in_tables(what: str, cell: SupportCell) -> str:
    return f"{what} is {cell.value} in our tables ({cell.why})"


_NO_EXPORT = "engines are built from TensorRT-LLM checkpoints, which the recipe does not export"


def _exported(recipe: QuantizationRecipe, **changes: Any) -> Support:
    """Whether a TensorRT-LLM checkpoint, which engines are built from, can hold what a recipe makes."""
    try:
        exported = recipe.model_copy(update={"tensorrt_llm_checkpoint": True, **changes})
        refuse_unsupported_tensorrt_llm_checkpoint(exported)
    except Unsupported as error:
        return Support("no", error.message)
    return Support("yes", "")


def judge(question: FormatQuestion) -> Legal | Refused:
    """Whether TensorRT-LLM builds and serves a recipe on a target."""
    target = question.target
    if target.accelerator == "cpu":
        return Refused(reason=f"engine {target.engine} does not run on a CPU", nearest="engine: openvino_cpu")
    platform = platform_of(target, question.model_id)
    newest = containers()[0]
    if refused := gpu_target_refusal(target, f"runtime_version: {newest.tensorrt_llm}, container: {newest.image}"):
        return refused
    if refused := version_refusal(target) or target_refusal(target):
        return refused
    if question.recipe.weights == "ready" and target.engine == "tensorrt_llm_engine":
        return Refused(reason=_NO_EXPORT, nearest=OTHER_ENGINE)
    if question.foreign_format:
        return _judge_foreign(platform, question.foreign_format)
    return _judge_formats(question, platform)


def _judge_foreign(platform: Platform, name: str) -> Legal | Refused:
    """What another tool than modelopt quantized: by the reader, and the kernels of what it is read as."""
    known = find_ready_format(name)
    cell = known.tensorrt_llm.get(platform.column) if known else None
    if known is None or cell is None:
        return Legal(warnings=(f"whether {platform.backend} reads {name} is in none of our tables",))
    if cell.value == "no":
        return Refused(reason=f"{platform.backend} does not read {name}: {cell.why}", nearest=OTHER_CHECKPOINT)
    kernels = find_support(platform.sm, known.row, platform.column)
    if kernels.value == "no":
        reason = f"{name} does not run on {platform.sm} with {platform.backend} ({kernels.why})"
        return Refused(reason=reason, nearest=OTHER_CHECKPOINT)
    told = [(f"{name} read by {platform.backend}", cell), (f"{name} on {platform.sm}", kernels)]
    return legal([Support(one.value, f"{what} is {one.value} in our tables ({one.why})") for what, one in told])


def _judge_formats(question: FormatQuestion, platform: Platform) -> Legal | Refused:
    target, recipe, dtype = question.target, question.recipe, question.dtype
    asked, compiled = question.asked, target.engine == "tensorrt_llm_engine"
    weights = {name: weights_support(platform, name, dtype, mixed=asked.mixed) for name in asked.weights}
    kv_cache = kv_support(platform, asked.kv_cache)
    if compiled:
        of_recipe = _exported(recipe, kv_cache="none")
        if recipe.weights == "none":
            of_recipe = Support("yes", "") if recipe.tensorrt_llm_checkpoint else Support("no", _NO_EXPORT)
        weights = {name: worse(support, of_recipe) for name, support in weights.items()}
        kv_cache = worse(kv_cache, _exported(recipe, weights="fp8"))
    supports = (*weights.values(), kv_cache)
    reasons = [support.text for support in supports if support.value == "no"]
    advice = []
    if compiled and not recipe.tensorrt_llm_checkpoint:
        reasons.append(_NO_EXPORT)
        advice.append("tensorrt_llm_checkpoint: true")
    ranks, wanted = recipe.tensorrt_llm_ranks, target.parallelism
    if compiled and (ranks.tensor, ranks.pipeline) != (wanted.tensor, wanted.pipeline):  # no flag changes it
        advice.append(f"tensorrt_llm_ranks: {{tensor: {wanted.tensor}, pipeline: {wanted.pipeline}}}")
        if recipe.tensorrt_llm_checkpoint:
            reasons.append(
                f"the TensorRT-LLM checkpoint is for {ranks.tensor} x {ranks.pipeline} ranks (tensor x pipeline "
                f"parallelism), {target.name} has {wanted.tensor} x {wanted.pipeline}"
            )
    if not reasons:
        return legal((*supports, *_runtime_supports(target, recipe)))
    refused = [name for name, support in weights.items() if support.value == "no"]
    formats, kv_caches = legal_weights(platform, dtype), legal_kv_caches(platform)
    if kv_cache.value != "no":
        kv_caches = (asked.kv_cache, *kv_caches)
    if compiled:
        formats = tuple(
            name
            for name in formats
            if name != "none" and _exported(recipe, weights=name, kv_cache="none").value == "yes"
        )
    formats = formats or ("none",)  # unquantized, where no format is known to run
    advice = [*changes(recipe, asked, refused, formats, kv_caches), *advice]
    return Refused(reason="; ".join(dict.fromkeys(reasons)), nearest=", ".join(advice))


def _runtime_supports(target: Target, recipe: QuantizationRecipe) -> Iterator[Support]:
    """What is not known of the target's version and container."""
    version, first = target.runtime_version or "", str(read_table("checkpoint_reader")["first_version"])
    yield from (Support("unknown", warning) for warning in version_warnings(target))
    unified = target.engine == "tensorrt_llm_llmapi" and recipe.weights != "none"
    if unified and release_numbers(version) < release_numbers(first):
        text = f"modelopt names TensorRT-LLM {first} as the first to read its checkpoints, this is {version}"
        yield Support("unknown", text)


def judge_model(facts: ModelFacts, _transformers: str | None) -> Legal:
    """TensorRT-LLM's list of models is no limit, so a model that is not on it is a warning."""
    if not facts.architecture or facts.architecture in read_table("tensorrt_llm_architectures")["architectures"]:
        return Legal()
    return Legal(warnings=(f"{facts.architecture} is not in TensorRT-LLM's list of models: it may run all the same",))
