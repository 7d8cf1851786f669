"""What is wrong with a release whatever the target: its recipes, model, data files, routers and adapters.

Adapters are asked about their own settings (`check_adapters`). Routers and metric sources are judged together
(`check_routers`), and engines in `compatibility`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import ceil
from pathlib import Path

from llm_pipeline.artifacts.model_rules import DEFAULT_TEMPLATE
from llm_pipeline.base.errors import ConfigError, Unsupported, refuse
from llm_pipeline.catalog.output_head import is_named
from llm_pipeline.catalog.tables import modelopt_algorithms
from llm_pipeline.config.deployment import TargetPlace
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.config.quantization import BLOCKWISE, NAMED_SET, Calibration, QuantizationRecipe
from llm_pipeline.config.server_place import OpenAiSlot
from llm_pipeline.config.target import Target
from llm_pipeline.config.workload import longest
from llm_pipeline.engines.builder import engine_adapter, own_server_of
from llm_pipeline.loadtest.workload import check_workload, longest_request
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning import host
from llm_pipeline.planning.compatibility import experts_left_out
from llm_pipeline.planning.memory import HALF_PRECISION, least_effective_bits, quantizes_experts
from llm_pipeline.quantization.calibration import choose_samples, read_source
from llm_pipeline.quantization.tensorrt_llm_checkpoint import refuse_unsupported_tensorrt_llm_checkpoint
from llm_pipeline.release.loading import LoadedRelease


def check_recipes(loaded: LoadedRelease, facts: ModelFacts | None) -> None:
    """Refuse what cannot be exported of the model, and searches for fewer bits than their formats can reach on it.

    Raises:
        Unsupported: A TensorRT-LLM checkpoint cannot hold the format; layers are no multiple of a format's blocks wide;
            or the head and what the recipe excludes stay at 16 bits, and leave too few for the rest.
    """
    for recipe in loaded.release.recipes:
        refuse_unsupported_tensorrt_llm_checkpoint(recipe)
        if facts is not None:
            _check_blocks(recipe, facts)
        if facts is None or recipe.search is None:
            continue
        bits, least = recipe.search.effective_bits[0], least_effective_bits(facts, recipe)
        if bits < least:
            raise Unsupported(
                f"effective_bits {bits:g} cannot be reached on {loaded.release.model.id}: with all that may be "
                f"quantized in {', '.join(recipe.formats)}, the mean over all linear layers is {least:.2f}",
                where=str(loaded.file_of("quantization", recipe.file_name)),
                hint=f"search.effective_bits from {ceil(least * 10) / 10:g} on, or formats of fewer bits",
            )


def _check_blocks(recipe: QuantizationRecipe, facts: ModelFacts) -> None:
    """Refuse INT4 of layers that its blocks do not divide: modelopt calibrates them, and then cannot export them."""
    if BLOCKWISE.isdisjoint(recipe.formats):
        return
    layers = {name: group.columns for name, group in facts.linears() if not is_named(name, recipe.exclude)}
    group = recipe.group_size
    if partial := {name: columns for name, columns in layers.items() if columns % group}:
        name = min(partial)
        own = recipe.weights in BLOCKWISE  # a search has modelopt's groups
        fitting = [size for size in (64, 32) if own and not any(columns % size for columns in layers.values())]
        smaller = f"group_size: {fitting[0]}, or " if fitting else ""
        raise Unsupported(
            f"{len(partial)} of {len(layers)} layers are no multiple of {group} columns wide, as INT4 needs: "
            f"{name} has {partial[name]}",
            where=f"recipe {recipe.name}",
            hint=f"{smaller}exclude these layers, or take another format, e.g. fp8 or int8_weight_only",
        )


def recipe_warnings(loaded: LoadedRelease) -> Iterator[str]:
    """What works, though perhaps not as meant."""
    cuda = [recipe.name for recipe in loaded.release.recipes if recipe.needs_cuda]
    if cuda and not loaded.deployment.quantization_host and not host.has_nvidia_gpu():
        yield (
            f"{', '.join(cuda)}: quantization needs a CUDA device in the model environment; this machine has none, and "
            f"deployment {loaded.deployment.name} names no quantization_host"
        )
    compiles = any(engine_adapter(target.engine).compiles_export for target in loaded.release.targets)
    for recipe in loaded.release.recipes:
        if recipe.tensorrt_llm_checkpoint and not compiles:
            yield f"{recipe.name}: tensorrt_llm_checkpoint is read by engine tensorrt_llm_engine, which no target has"


_SEEN_WITH = "seen with modelopt 0.47.0 and Transformers 5.5.4"
_NOT_READ_BACK = f"quantized experts are not read back for scorer hf ({_SEEN_WITH})"
_NOT_EXPORTED: Mapping[str, str] = {
    "falcon": f"leaves its layers unquantized ({_SEEN_WITH})",
    "bloom": f"fails on its layers ({_SEEN_WITH})",
}
"""Architectures of which no recipe makes an export that passes its validation."""
_PACKED_EXPERTS = ("gpt_oss", "llama4_text")


def check_model(loaded: LoadedRelease, facts: ModelFacts) -> None:
    """Refuse recipes that cannot quantize the model, and lengths beyond its context.

    Raises:
        Unsupported: No baseline can be scored of the model, or a recipe cannot be made of it.
        ConfigError: The evaluation gives the model more tokens than its context has.
    """
    evaluation, where, hint = loaded.release.evaluation, str(loaded.path), "remove or change them; nothing was started"
    problems = [f"{where}: {problem}" for problem in _model_problems(loaded, facts)]
    problems += [
        f"{loaded.file_of('quantization', recipe.file_name)}: recipe {recipe.name}: {problem}"
        for recipe in loaded.release.recipes
        for problem in (*recipe_problems(recipe, facts), *scorer_problems(scorer_of(loaded), recipe, facts))
    ]
    refuse(problems, hint=hint, kind=Unsupported)
    if evaluation.maximum_length > facts.context_length:
        beyond = f"is beyond the model's context of {facts.context_length} tokens"
        hint = f"evaluation.maximum_length: {facts.context_length}"
        raise ConfigError(f"evaluation.maximum_length {evaluation.maximum_length} {beyond}", where=where, hint=hint)


def _model_problems(loaded: LoadedRelease, facts: ModelFacts) -> Iterator[str]:
    """Why no release can be made of the model, whatever the recipe, and what to do instead."""
    if facts.end_tokens == ():
        yield (
            "no token ends the model's answers: generation_config.json, config.json and the tokenizer name none -> "
            "publish a copy of the model whose generation_config.json has eos_token_id"
        )
    chats = loaded.release.evaluation.chat_template is not False or any(
        recipe.calibration and recipe.calibration.chat_template for recipe in loaded.release.recipes
    )
    if chats and facts.chat_templates and DEFAULT_TEMPLATE not in facts.chat_templates:
        yield (
            f"the model's chat templates are {', '.join(facts.chat_templates)}, and none of them is the default -> "
            "evaluation.chat_template: false; or publish a copy of the model with one as chat_template.jinja"
        )
    if (unread := unread_format(facts)) and scorer_of(loaded) == "hf":
        yield f"no baseline can be scored of the model: {unread} -> {_PLAIN_WEIGHTS}"


_VLLM = "evaluation.scorer: vllm, on a host that has it"
_PLAIN_WEIGHTS = (
    f"name the repository with weights of 16 bit as the model, and this one as the source of a recipe; or {_VLLM}"
)


def scorer_of(loaded: LoadedRelease) -> str:
    """The class of lm-eval that will score checkpoints; what `auto` takes is known for sure on the host alone."""
    asked = loaded.release.evaluation.scorer
    gpus = loaded.deployment.quantization_host is not None or host.has_nvidia_gpu()
    return asked if asked != "auto" else "vllm" if gpus else "hf"


def unread_format(facts: ModelFacts) -> str:
    """Why Transformers, the scorer `hf`, does not read a checkpoint that is quantized; empty where it does."""
    method, _, algorithm = facts.stored_format.partition(" ")
    if not method:
        return ""
    told = f"its weights are quantized ({facts.stored_format})"
    if method != "compressed-tensors" and (method != "modelopt" or algorithm not in modelopt_algorithms()):
        return f"{told}, and scorer hf reads plain weights, modelopt's formats and compressed-tensors only"
    experts = sum(group.parameters * len(group.layers) for group in facts.matrices if group.copies > 1)
    if facts.stored_bytes < experts * HALF_PRECISION:
        return f"{told}, and {_NOT_READ_BACK}"
    return ""


def scorer_problems(scorer: str, recipe: QuantizationRecipe, facts: ModelFacts) -> Iterator[str]:
    """Why a scorer cannot read a recipe's checkpoint, and what to do instead."""
    if scorer != "hf":
        return
    if recipe.name in facts.ready and (unread := unread_format(facts.ready[recipe.name])):
        yield f"{unread} -> {_VLLM}"
    if quantizes_experts(facts, recipe):
        yield f"{_NOT_READ_BACK} -> {experts_left_out(recipe)}, or {_VLLM}"


_SHAPE = ("model_type", "hidden_size", "layers", "attention_heads", "vocabulary_size", "experts")


def recipe_problems(recipe: QuantizationRecipe, facts: ModelFacts) -> Iterator[str]:
    """Why a recipe cannot be made of a model, and what to do instead; one line each."""
    if recipe.weights == "ready" and (ready := facts.ready.get(recipe.name)) is not None:
        if not ready.stored_format:
            yield f"the weights of {recipe.source} are not quantized -> release it as a model of its own"
        if differing := [f"{name} {getattr(ready, name)}, not {getattr(facts, name)}" for name in _SHAPE
                         if getattr(ready, name) != getattr(facts, name)]:  # fmt: skip
            yield (
                f"{recipe.source} is of another model: {'; '.join(differing)} -> a checkpoint that was made of this one"
            )
    if recipe.weights in ("none", "ready"):
        return
    if facts.stored_format:
        yield (
            f"the model is quantized already ({facts.stored_format}), and modelopt quantizes plain weights -> recipe "
            "none, or the model's unquantized repository"
        )
        return
    kinds = {group.kind for group in facts.matrices}
    if "convolution" in kinds:
        yield (
            f"the layers of {facts.model_type} are transposed (Conv1D), which modelopt's exports cannot be read back "
            "from -> recipe none"
        )
    if (seen := _NOT_EXPORTED.get(facts.model_type)) is not None:
        yield f"modelopt {seen} -> recipe none"
    experts = any(".experts." in group.name for group in facts.matrices)
    if experts and not BLOCKWISE.isdisjoint(recipe.formats):
        yield f"modelopt's export of INT4 fails on mixtures of experts ({_SEEN_WITH}) -> weights of 8 bits"
    if facts.model_type in _PACKED_EXPERTS and quantizes_experts(facts, recipe):
        problem = f"modelopt's export of {facts.model_type} fails its check, as it keeps experts in one tensor"
        yield f"{problem} ({_SEEN_WITH}) -> {experts_left_out(recipe)}"
    if recipe.calibration and recipe.calibration.chat_template and facts.chat_templates == ():
        yield (
            "calibration.chat_template renders messages with the model's own template, and the model has none -> a "
            "model with a chat template, or texts without one"
        )


_SMALL_MODEL = 100 * 10**6
"""Bytes of weights below which scoring takes no time worth a word."""


def model_warnings(loaded: LoadedRelease, facts: ModelFacts | None) -> Iterator[str]:
    """What works, though perhaps not as meant."""
    if facts is None:
        return
    halves = facts.stored_by_dtype.get("BF16", 0)
    if loaded.release.baseline.dtype == "float16" and 2 * halves > facts.stored_bytes:
        yield (
            "the model is stored in bfloat16, and baseline.dtype is float16: what is larger than 65,504 in it becomes "
            "infinite -> baseline.dtype: bfloat16"
        )
    on_cpu = loaded.deployment.quantization_host is None and not host.has_nvidia_gpu()
    if loaded.release.baseline.dtype == "float16" and on_cpu and facts.stored_bytes > _SMALL_MODEL:
        yield (
            "the model is scored on a CPU in float16, which took ten times as long as bfloat16 where it was measured "
            "-> baseline.dtype: bfloat16"
        )
    for target in loaded.release.targets:
        asked = target.limits.maximum_tokens_per_request
        stated = "maximum_tokens_per_request" in target.limits.model_fields_set
        if stated and asked > facts.context_length:
            yield (
                f"{target.name}: limits.maximum_tokens_per_request {asked} is beyond the model's context: requests of "
                f"{facts.context_length} tokens are the longest"
            )
    workload = loaded.release.workload
    most = longest(workload.output_tokens) + (longest(workload.prompt_tokens) if workload.prompt_tokens else 0)
    if most > facts.context_length:
        yield f"the workload's longest requests have {most} tokens, the model's context {facts.context_length}"


def check_data_files(loaded: LoadedRelease) -> None:
    """Check the calibration sets, and the load test's prompts.

    Raises:
        ConfigError: A line that would be read is not of its format, there are too few, or the workload's settings
            contradict one another.
    """
    workload = loaded.release.workload
    check_workload(workload, loaded.configs_root)
    most = longest_request(workload) or 0
    for target in loaded.release.targets:
        if most > target.limits.maximum_tokens_per_request:
            raise ConfigError(
                f"workload: its longest request may need {most:,} tokens with its answer, and {target.name} takes "
                f"{target.limits.maximum_tokens_per_request:,}",
                where=str(loaded.path),
                hint="lower the maximum of prompt_tokens or output_tokens, or raise maximum_tokens_per_request",
            )
    for recipe in loaded.release.recipes:
        if recipe.calibration:
            _check_calibration(loaded, recipe.name, recipe.calibration)


def _check_calibration(loaded: LoadedRelease, recipe: str, calibration: Calibration) -> None:
    """Draw from files of one's own as the quantize stage will; named sets are fetched when the release is resolved."""
    local = [source for source in calibration.sources if not source.startswith(NAMED_SET)]
    chat = calibration.chat_template
    samples = [read_source(loaded.data_file(source), source, chat=chat) for source in local]
    if len(local) < len(calibration.sources):
        return
    try:
        choose_samples(samples, calibration)
    except ConfigError as error:
        where = str(loaded.data_file(error.where))
        raise ConfigError(f"recipe {recipe}: {error.message}", where=where, hint=error.hint) from error


def check_routers(loaded: LoadedRelease) -> None:
    """Refuse policies that a router or a staging server cannot follow, and routers whose traffic cannot be judged.

    Raises:
        ConfigError: Naming every such target.
    """
    places, policy = loaded.deployment.places, loaded.release.policy
    problems = [
        f"target {target.name}: {problem}"
        for target in loaded.release.targets
        if (place := loaded.config.place_of(target.name)) in places
        for problem in (
            *slot_problems(places[place], drills=loaded.release.drill is not None),
            *own_server_problems(loaded, target, places[place]),
            *problems_of(places[place], policy.canary),
        )
    ]
    refuse(
        problems,
        where=f"{loaded.path}: deployment {loaded.deployment.name}",
        hint="change the policy, the target, or staging, router and metrics of its place",
    )


def router_warnings(loaded: LoadedRelease) -> Iterator[str]:
    """What the routers of a release's targets leave open to users, and only their operators can close."""
    for target in loaded.release.targets:
        place = loaded.deployment.places.get(loaded.config.place_of(target.name))
        if place is not None and place.router.left_to_its_operator:
            left = place.router.left_to_its_operator
            yield f"{target.name}: the operator of its {place.router.kind} router has to refuse users {left}"
        for model in sorted({str(slot.endpoint.openai_model) for slot in openai_slots(place)} if place else ()):
            yield (
                f"{target.name}: nothing starts servers with OpenAI's API: before its canary, serve the release's "
                f"checkpoint as {model} in the slot that is not in production"
            )


def openai_slots(place: TargetPlace) -> list[OpenAiSlot]:
    """The production slots that are servers with OpenAI's API."""
    return [slot for slot in (place.blue, place.green) if isinstance(slot, OpenAiSlot)]


def slot_problems(place: TargetPlace, *, drills: bool) -> Iterator[str]:
    """Why a canary cannot be made between a place's slots."""
    slots, router = openai_slots(place), place.router
    if slots and not router.passes_openai:
        yield (
            f"router {router.kind} passes on Triton's paths only, and blue and green are servers with OpenAI's API: "
            "use an envoy"
        )
    if slots and drills:
        yield "a drill needs servers that are started here, and blue and green are servers with OpenAI's API"
    yield from router.slot_problems(slots)


def own_server_problems(loaded: LoadedRelease, target: Target, place: TargetPlace) -> Iterator[str]:
    """Why a place cannot run the server that a target wants instead of Triton."""
    own, brings = own_server_of(target), engine_adapter(target.engine).own_server
    if target.server == "triton":
        return
    if own is None:
        takes = f"triton or {brings.name}" if brings else "triton"
        yield f"server of engine {target.engine} may be {takes}, not {target.server}"
        return
    if place.router.offers_triton:
        yield f"{own.program} has none of Triton's routes, which users are offered: set only_openai of an envoy"
    if not place.staging.is_process_here:
        yield f"{own.program} is started on this host only, and staging is of kind {place.staging.kind}"
    if target.parallelism.world_size > target.gpus_per_node:
        yield f"{own.program} is started on one host, and the target's ranks need several"
    if loaded.release.drill is not None:
        yield f"a drill is made by the model's code in Triton, and {own.program} has none"
    environment = loaded.deployment.environments.get(place.environment)
    python = Path((environment.interpreter_here() if environment else None) or "/nonexistent/python")
    if target.accelerator == "cpu" and python.exists() and not (python.parent / own.program).exists():
        yield f"there is no command {own.program} beside {python}, the place's interpreter"


def problems_of(place: TargetPlace, policy: CanaryPolicy) -> Iterator[str]:
    """Why a place's router and metrics cannot do what a policy asks."""
    router, metrics = place.router, place.metrics
    if fine := [percent for percent in policy.steps_percent if round(percent * 100.0, 6) % router.share_unit]:
        shares = ", ".join(f"{percent:g}" for percent in fine)
        yield f"router {router.kind} splits by {router.share_unit / 100.0:g} %, and steps_percent has {shares}"
    if metrics is None and not router.logs_requests:
        yield f"router {router.kind} keeps no record of requests, and no metrics are named"
    if metrics is not None:
        yield from metrics.problems(router)
    yield from router.problems(policy)


def check_adapters(loaded: LoadedRelease) -> None:
    """Refuse settings of the deployment that an adapter cannot work with.

    Raises:
        ConfigError: Naming every one.
    """
    refuse(
        [f"{name}: {problem}" for name, problems, _ in _asked(loaded) for problem in problems],
        where=f"{loaded.path}: deployment {loaded.deployment.name}",
        hint="correct them in the deployment file",
    )


def adapter_warnings(loaded: LoadedRelease) -> Iterator[str]:
    """What adapters warn of in the settings."""
    yield from (f"{name}: {warning}" for name, _, warnings in _asked(loaded) for warning in warnings)


def _asked(loaded: LoadedRelease) -> Iterator[tuple[str, Iterable[str], Iterable[str]]]:
    """Where each of the settings stands, its problems and its warnings."""
    deployment, canary = loaded.deployment, loaded.release.policy.canary
    yield "store", deployment.store.problems(), deployment.store.warnings()
    for name in sorted({"control", "model", *(target.environment for target in loaded.release.targets)}):
        if environment := deployment.environments.get(name):
            yield f"environments.{name}", environment.problems(), environment.warnings()
    for target in loaded.release.targets:
        name = loaded.config.place_of(target.name)
        if place := deployment.places.get(name):
            yield f"places.{name}.staging", place.staging.problems(target), place.staging.warnings(target)
            yield f"places.{name}.router", (), place.router.warnings(canary)
            if place.metrics is not None:
                yield f"places.{name}.metrics", (), place.metrics.warnings(place.router)
