"""One target of a plan: whether every recipe is legal there, loads and fits, what fits beside it, and the best split.

An engine loads a model by its architecture, and by how a published checkpoint is quantized already: its adapter judges
that (`judge_model`), with the Transformers that is installed in the model environment.

The best split takes the fewest GPUs that hold the model, by tensor parallelism first. Tensor parallel ranks talk in
every layer, so they stay inside one host, with NVLink between its GPUs; a pipeline goes beyond, and costs latency.
Where there is no NVLink, the advice says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import Frozen
from llm_pipeline.catalog.tables import find_container, find_gpu
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.quantization import QuantizationRecipe, WeightFormat
from llm_pipeline.config.target import TOKENS_PER_BLOCK, EngineBuilderName, EngineLimits, Parallelism, Target
from llm_pipeline.engines.builder import engine_adapter
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning import host
from llm_pipeline.planning.compatibility import OFFERED, Legal, Refused, in_format, is_known_to_run, judge_compatibility
from llm_pipeline.planning.host import total_memory_bytes
from llm_pipeline.planning.memory import Engine, MemoryFit, fit_memory, format_bits, quantizes_experts, stored_as_it_is
from llm_pipeline.release.loading import LoadedRelease

_PAIR = 2


def pcie_reason(target: Target, tensor: int) -> str | None:
    """Why that many tensor parallel ranks would talk over PCIe; None where NVLink joins them.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    nvlink = find_gpu(target.accelerator).nvlink
    if nvlink is True or tensor == 1:
        return None
    if nvlink == "bridge":
        return f"NVLink bridges join pairs of {target.accelerator} only" if tensor > _PAIR else None
    return f"{target.accelerator} has no NVLink"


def interconnect_warnings(target: Target) -> tuple[str, ...]:
    """One line, where a target's tensor parallel ranks would talk over PCIe."""
    tensor = target.parallelism.tensor
    if (reason := pcie_reason(target, tensor)) is None:
        return ()
    return (f"tensor parallelism {tensor} goes over PCIe in every layer ({reason}): a pipeline sends far less",)


def unread_warnings(target: Target) -> tuple[str, ...]:
    """One line that names them; none where there are none."""
    engine = engine_adapter(target.engine)
    unread = [
        f"{section}.{name}"
        for section, read in engine.reads.items()
        for name in _changed(getattr(target, section))
        if name not in read and f"{name.partition('.')[0]}.*" not in read
    ]
    return (f"{engine.words or target.engine} does not read {', '.join(unread)}",) if unread else ()


def _changed(options: ConfigModel) -> Iterator[str]:
    """Names of the options that are not at their defaults, with a point for each level."""
    defaults = type(options)()
    for name in type(options).model_fields:
        mine, theirs = getattr(options, name), getattr(defaults, name)
        if isinstance(mine, ConfigModel) and isinstance(theirs, ConfigModel):
            yield from (f"{name}.{below}" for below in _changed(mine))
        elif mine != theirs:
            yield name


def target_warnings(target: Target) -> tuple[str, ...]:
    """What works on a GPU target without a problem, though perhaps not as meant."""
    warnings = engine_adapter(target.engine).warnings
    return (*unread_warnings(target), *interconnect_warnings(target), *(warnings(target) if warnings else ()))


_CPU_RUNTIME_BYTES = 2**29
"""The server, its Python process and OpenVINO; an estimate."""

_TENSOR_STEPS = (1, 2, 4, 8, 16)


def judge_memory(
    target: Target, recipe: QuantizationRecipe, facts: ModelFacts
) -> tuple[MemoryFit | None, Refused | None]:
    """The memory of one rank, and the refusal when it does not hold what the target's limits ask for.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    if split := _cannot_split(facts, target.parallelism):
        return None, split
    fit = _fit(target, recipe, facts, target.parallelism)
    if fit.fits:
        return fit, None
    return fit, Refused(reason=_shortage(fit, target, facts), nearest=_advice(fit, target, recipe, facts))


def engine_memory(target: Target) -> Engine:
    """The memory model of a target's engine."""
    engine, on_cpu = engine_adapter(target.engine), target.accelerator == "cpu"
    if on_cpu and not engine.shares_whole_memory:
        # The engine computes in float32 and keeps its KV cache so, for results that repeat exactly.
        return Engine(
            capacity=total_memory_bytes(),
            runtime=_CPU_RUNTIME_BYTES,
            unquantized_bytes=4,
            kv_bytes=4,
            quantizes_kv=False,
        )
    return Engine(
        capacity=total_memory_bytes() if on_cpu else find_gpu(target.accelerator).usable_bytes,
        runtime=engine.runtime_bytes,
        kv_cache=target.runtime.kv_cache,
        shares_whole_memory=engine.shares_whole_memory,
    )


def _cannot_split(facts: ModelFacts, parallelism: Parallelism) -> Refused | None:
    heads, tensor, pipeline = facts.attention_heads, parallelism.tensor, parallelism.pipeline
    if heads % tensor:
        nearest = max(number for number in range(1, tensor) if heads % number == 0)
        reason = f"{heads} attention heads cannot be split over tensor parallelism {tensor}"
        return Refused(reason=reason, nearest=f"parallelism.tensor: {nearest}")
    if pipeline > facts.layers:
        reason = f"{facts.layers} layers cannot be split over pipeline parallelism {pipeline}"
        return Refused(reason=reason, nearest=f"parallelism.pipeline: {facts.layers}")
    expert = parallelism.expert or 1
    if expert > 1 and not facts.is_mixture:
        return Refused(reason="the model has no experts to be spread", nearest="no parallelism.expert")
    if facts.is_mixture and facts.experts % expert:
        nearest = max(number for number in range(1, expert) if facts.experts % number == 0)
        reason = f"{facts.experts} experts cannot be spread over expert parallelism {expert}"
        return Refused(reason=reason, nearest=f"parallelism.expert: {nearest}")
    return None


def _fit(target: Target, recipe: QuantizationRecipe, facts: ModelFacts, parallelism: Parallelism) -> MemoryFit:
    return fit_memory(facts, recipe, engine_memory(target), _limits(target, facts), parallelism)


def _limits(target: Target, facts: ModelFacts) -> EngineLimits:
    """The target's limits, with requests no longer than the model's own context."""
    tokens = min(target.limits.maximum_tokens_per_request, facts.context_length)
    return target.limits.model_copy(update={"maximum_tokens_per_request": tokens})


def _shortage(fit: MemoryFit, target: Target, facts: ModelFacts) -> str:
    limits, kv_cache = _limits(target, facts), target.runtime.kv_cache
    whole = engine_adapter(target.engine).shares_whole_memory
    share = f"{kv_cache.free_memory_fraction:.0%} of the {'whole for all three' if whole else 'rest'}"
    return (
        f"{fit.weights / 1e9:.1f} GB weights + {fit.runtime / 1e9:.1f} GB runtime of {fit.capacity / 1e9:.1f} GB "
        f"leave {fit.kv_available / 1e9:.1f} GB for the KV cache ({share}), but "
        f"maximum_sequences {limits.maximum_sequences} x {limits.maximum_tokens_per_request} tokens a request "
        f"need {fit.kv_wanted / 1e9:.1f} GB"
    )


def _advice(fit: MemoryFit, target: Target, recipe: QuantizationRecipe, facts: ModelFacts) -> str:
    if fit.largest_batch:
        return f"limits.maximum_sequences: {fit.largest_batch}"
    pipeline = target.parallelism.pipeline
    for tensor in _TENSOR_STEPS:
        if not target.parallelism.tensor < tensor <= target.gpus_per_node or facts.attention_heads % tensor:
            continue
        parallelism = Parallelism(tensor=tensor, pipeline=pipeline)
        if target.accelerator != "cpu" and _fit(target, recipe, facts, parallelism).fits:
            return f"parallelism.tensor: {tensor} with accelerator_count: {tensor * pipeline}"
    if smaller := _smaller_format(target, recipe, facts):
        return f"weights: {smaller}, or an accelerator with more memory"
    return "an accelerator with more memory: no format that runs on this one makes the model fit"


def _smaller_format(target: Target, recipe: QuantizationRecipe, facts: ModelFacts) -> WeightFormat | None:
    """The largest format that runs there and makes the model fit, other than the recipe's."""
    if facts.stored_format or recipe.weights == "ready":
        return None
    fitting = [name for name in OFFERED if name != recipe.weights and fits_with(target, recipe, facts, name)]
    running = [name for name in fitting if is_known_to_run(target, in_format(recipe, name))]
    return max(running, key=format_bits, default=None)


def fits_with(target: Target, recipe: QuantizationRecipe, facts: ModelFacts, weights: WeightFormat) -> bool:
    """Whether a target holds what its limits ask for, with the weights in another format."""
    parallelism = target.parallelism
    return not _cannot_split(facts, parallelism) and _fit(target, in_format(recipe, weights), facts, parallelism).fits


_LENGTHS = (2048, 8192, 32_768, 131_072)


class BatchAtLength(Frozen):
    """How many requests of so many tokens, prompt and output together, are held at once."""

    tokens: int
    batch: int


class Capacity(Frozen):
    """What fits beside the weights.

    Attributes:
        batches: The largest batch by length: of the target's own longest request, and of usual lengths.
        sequences: The target's `limits.maximum_sequences`.
        longest_request: Tokens of the longest requests of which so many fit at once, in whole blocks, and no more than
            the model's context; 0 when not even the shortest do.
    """

    batches: tuple[BatchAtLength, ...]
    sequences: int
    longest_request: int


def capacity(target: Target, recipe: QuantizationRecipe, facts: ModelFacts) -> Capacity | None:
    """What a target holds; None when the model cannot be split as the target says.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    if judge_memory(target, recipe, facts)[0] is None:
        return None
    wanted = min(target.limits.maximum_tokens_per_request, facts.context_length)
    lengths = sorted({wanted, *(length for length in _LENGTHS if length <= facts.context_length)})
    fits = [(length, _fit_tokens(target, recipe, facts, length)) for length in lengths]
    return Capacity(
        batches=tuple(BatchAtLength(tokens=length, batch=fit.largest_batch) for length, fit in fits if fit),
        sequences=target.limits.maximum_sequences,
        longest_request=_longest(target, recipe, facts),
    )


def _longest(target: Target, recipe: QuantizationRecipe, facts: ModelFacts) -> int:
    """By bisection: more tokens never fit better."""
    block = TOKENS_PER_BLOCK
    held, too_long = 0, facts.context_length // block + 1
    while too_long - held > 1:
        middle = (held + too_long) // 2
        fit = _fit_tokens(target, recipe, facts, middle * block)
        held, too_long = (middle, too_long) if fit and fit.fits else (held, middle)
    return held * block


def _fit_tokens(target: Target, recipe: QuantizationRecipe, facts: ModelFacts, tokens: int) -> MemoryFit | None:
    limits = target.limits.model_copy(update={"maximum_tokens_per_request": tokens})
    return judge_memory(target.model_copy(update={"limits": limits}), recipe, facts)[0]


_STEPS = (1, 2, 4, 8)


class SplitAdvice(Frozen):
    """A better split than the configured one.

    Attributes:
        gpus: GPUs of one engine.
        why: What it is better in.
    """

    tensor: int
    pipeline: int
    gpus: int
    why: str

    @property
    def change(self) -> str:
        """What to write into the target."""
        split = f"{{ tensor: {self.tensor}, pipeline: {self.pipeline} }}"
        return f"parallelism: {split}, accelerator_count: {self.gpus}"


def advise_split(target: Target, recipe: QuantizationRecipe, facts: ModelFacts) -> SplitAdvice | None:
    """The best split for what the target's limits ask for; None where it is configured, or none fits.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    if target.accelerator == "cpu":
        return None
    best = next(
        (split for split in _splits(facts, target.gpus_per_node) if _split_fits(target, recipe, facts, split)), None
    )
    now = target.parallelism
    if best is None or (best.tensor, best.pipeline) == (now.tensor, now.pipeline):
        return None
    over_pcie = pcie_reason(target, best.tensor)
    why = _why(target, best, fits=_split_fits(target, recipe, facts, now), over_pcie=over_pcie is not None)
    if why is None:
        return None
    if over_pcie:
        why += f"; its ranks would communicate over PCIe in every layer ({over_pcie})"
    return SplitAdvice(tensor=best.tensor, pipeline=best.pipeline, gpus=best.world_size, why=why)


def _why(target: Target, best: Parallelism, *, fits: bool, over_pcie: bool) -> str | None:
    now = target.parallelism
    gpus = f"{best.world_size} GPU{'s' if best.world_size > 1 else ''}"
    if not fits:
        return f"it fits on {gpus}"
    if best.world_size < now.world_size:
        return f"what the limits ask for fits on {gpus} of the {now.world_size}: more only make it faster"
    if now.tensor > target.gpus_per_node:
        return f"tensor parallelism {now.tensor} leaves the NVLink of one node of {target.gpus_per_node}"
    if best.tensor > now.tensor and not over_pcie:
        return "tensor parallel ranks answer sooner than the stages of a pipeline"
    return None


def _splits(facts: ModelFacts, gpus_per_node: int) -> Iterator[Parallelism]:
    """Fewest GPUs first; of as many, the shortest pipeline."""
    splits = [
        Parallelism(tensor=tensor, pipeline=pipeline)
        for tensor in _STEPS
        if tensor <= gpus_per_node
        for pipeline in _STEPS
        if facts.attention_heads % tensor == 0 and pipeline <= facts.layers
    ]
    yield from sorted(splits, key=lambda split: (split.world_size, split.pipeline))


def _split_fits(target: Target, recipe: QuantizationRecipe, facts: ModelFacts, split: Parallelism) -> bool:
    changes = {"parallelism": split, "accelerator_count": split.world_size}
    fit, _ = judge_memory(target.model_copy(update=changes), recipe, facts)
    return fit is not None and fit.fits


class RecipePlan(Frozen):
    """One recipe on one target.

    Attributes:
        stored_format: Of a quantized checkpoint that it passes on as it is, its format.
        legal: Whether it can be built and served there, as far as is known.
        reason: Why not; empty when legal.
        nearest: The nearest choice that is legal; empty when legal.
        warnings: What is not known, or not as asked for.
        memory: The memory of one rank; None where the model's sizes are not known.
        capacity: Batches and lengths that fit; None where the model's sizes are not known, or it cannot be split so.
        split: A better split over GPUs, if there is one.
    """

    recipe: str
    weights: WeightFormat
    stored_format: str = ""
    legal: bool
    reason: str = ""
    nearest: str = ""
    warnings: tuple[str, ...] = ()
    memory: MemoryFit | None = None
    capacity: Capacity | None = None
    split: SplitAdvice | None = None


class TargetPlan(Frozen):
    """One target with every recipe.

    Attributes:
        accelerators: GPUs of one engine instance; 0 on a CPU.
        architecture: Compute capability of the GPU; empty on a CPU.
        container: Image with its tag.
        digest: What the image is pinned to; None for nothing, so that the tag may come to mean another image.
        driver: Driver version that the container was built for, if known.
        warnings: What works there though not as written, whatever the recipe.
    """

    name: str
    accelerator: str
    accelerators: int
    architecture: str = ""
    engine: EngineBuilderName
    runtime_version: str | None = None
    container: str | None = None
    digest: str | None = None
    driver: str | None = None
    warnings: tuple[str, ...] = ()
    recipes: tuple[RecipePlan, ...]


def judge_model(
    target: Target, recipe: QuantizationRecipe, facts: ModelFacts, transformers: str | None
) -> Legal | Refused:
    """Whether a target's engine loads a model, and what is not known of that.

    Args:
        target: Where it is to be served.
        recipe: How it is quantized here.
        facts: The model.
        transformers: Version in the environment that builds; None where it is not known: then nothing of it is judged.
    """
    judge = engine_adapter(target.engine).judge_model
    judged: Legal | Refused = judge(facts, transformers) if judge else Legal()
    if isinstance(judged, Refused) or not facts.stored_format or recipe.weights != "none":
        return judged
    told = (
        f"the model is quantized already ({facts.stored_format}) and is served as it is: what it lost by that shows "
        "nowhere, as the baseline's scores are of it, too"
    )
    return judged.model_copy(update={"warnings": (*judged.warnings, told)})


def plan_target(
    loaded: LoadedRelease, target: Target, facts: ModelFacts | None, *, stated: ModelFacts | None = None
) -> TargetPlan:
    """Judge every recipe of a release on one target.

    Args:
        loaded: The release.
        target: One of its targets.
        facts: The model; None while it was not read: then memory is not judged.
        stated: The model by what the release config says, for advice that fits while it was not read.

    Raises:
        ConfigError: The accelerator is not in the GPU catalog.
    """
    try:
        gpu = None if target.accelerator == "cpu" else find_gpu(target.accelerator)
    except ConfigError as error:
        where = str(loaded.file_of("targets", target.name))
        raise ConfigError(f"accelerator: {error.message}", where=where, hint=error.hint) from error
    recipes = tuple(_plan_recipe(loaded, target, recipe, facts, stated) for recipe in loaded.release.recipes)
    image, _, digest = (target.container or "").partition("@")
    known = find_container(image)
    return TargetPlan(
        name=target.name,
        accelerator=target.accelerator,
        accelerators=target.accelerator_count if gpu else 0,
        architecture=gpu.sm if gpu else "",
        engine=target.engine,
        runtime_version=target.runtime_version,
        container=image or None,
        digest=digest or None,
        driver=known.driver if known else None,
        warnings=target_warnings(target) if gpu and any(recipe.legal for recipe in recipes) else (),
        recipes=recipes,
    )


def _plan_recipe(
    loaded: LoadedRelease,
    target: Target,
    recipe: QuantizationRecipe,
    facts: ModelFacts | None,
    stated: ModelFacts | None,
) -> RecipePlan:
    release, known = loaded.release, facts or stated
    fits = partial(fits_with, target, recipe, known) if known else None
    stored = stored_as_it_is(known, recipe) if known else None
    stored_format = stored.stored_format if stored else ""
    judged = judge_compatibility(
        target,
        recipe,
        release.baseline.dtype,
        release.model.id,
        fits,
        stored_format=stored_format,
        quantized_experts=bool(known and quantizes_experts(known, recipe)),
    )
    plan = RecipePlan(recipe=recipe.name, weights=recipe.weights, stored_format=stored_format, legal=judged.legal)
    if isinstance(judged, Refused):
        return plan.model_copy(update={"reason": judged.reason, "nearest": judged.nearest})
    plan = plan.model_copy(update={"warnings": judged.warnings})
    if facts is None:
        return plan
    loads = judge_model(target, recipe, facts, host.installed_transformers(loaded.deployment))
    if isinstance(loads, Refused):
        return plan.model_copy(update={"legal": False, "reason": loads.reason, "nearest": loads.nearest})
    memory, too_large = judge_memory(target, recipe, facts)
    split = advise_split(target, recipe, facts)
    nearest = too_large.nearest if too_large else ""
    if too_large and split and split.change not in nearest:
        nearest = f"{split.change}, or {nearest}"
    figures = {
        "legal": too_large is None,
        "reason": too_large.reason if too_large else "",
        "nearest": nearest,
        "warnings": (*plan.warnings, *loads.warnings),
        "memory": memory,
        "capacity": capacity(target, recipe, facts),
        "split": split,
    }
    return plan.model_copy(update=figures)
