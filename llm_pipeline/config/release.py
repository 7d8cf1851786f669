"""The release config: one model, how it is quantized, judged, built, served and promoted."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from llm_pipeline.base.quantities import duration
from llm_pipeline.config.model import (
    DIRECTORY_OR_BUCKET,
    BatchSize,
    ConfigModel,
    Cron,
    DataSetName,
    Fraction,
    HubId,
    Items,
    Line,
    Minutes,
    Name,
    Names,
    PathText,
    PositiveHours,
    PositiveMilliseconds,
    PositiveMinutes,
    Revision,
    Small,
    Tokens,
    Word,
    Words,
)
from llm_pipeline.config.policy import Policy
from llm_pipeline.config.quantization import Precision, QuantizationRecipe
from llm_pipeline.config.target import Target
from llm_pipeline.config.workload import Workload

HOUR = 3600

Amount = Annotated[float, Field(ge=0.0, le=1_000_000_000.0)]


class Budget(ConfigModel):
    """What a release may take before a person is asked, after its plan and before anything large is fetched.

    Attributes:
        hours: Planned time of all that will be computed, one step after the other; None for no limit.
        cost: Planned price of its GPU-hours, in the deployment's currency; None for no limit. The deployment must name
            the price of every GPU that is needed.
    """

    hours: PositiveHours | None = None
    cost: Amount | None = None

    def __bool__(self) -> bool:
        return self.hours is not None or self.cost is not None

    def in_words(self, currency: str) -> str:
        """What it allows: `2 h, 12.60 EUR`."""
        hours = [] if self.hours is None else [duration(self.hours * HOUR)]
        return ", ".join([*hours, *([] if self.cost is None else [f"{self.cost:.2f} {currency}"])])


_DATA_SOURCE = r"^(hub|file:///[^?#]+)$"
_SOURCE = rf"^(hub|{DIRECTORY_OR_BUCKET})$"

Arguments = Annotated[dict[Word, JsonValue], Field(max_length=64)]
"""Arguments of another system's function, as they are."""

Size = Literal[
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "tie_word_embeddings",
    "num_experts", "num_experts_per_tok", "moe_intermediate_size", "parameters", "kv_bytes_per_token",
    "state_bytes_per_sequence",
]  # fmt: skip
"""What a release config may state of a model by hand."""


class ModelSource(ConfigModel):
    """Where the weights come from.

    Attributes:
        id: `organisation/name` on the hub, and the model's name everywhere else.
        revision: Branch, tag or commit; pinned to a commit by the first stage. Only the hub has any.
        source: `hub`, a directory (`file:///absolute/path`) or an S3 prefix (`s3://bucket/prefix`).
        licenses: Licences that may be released, as the hub writes them; None for any.
        sizes: What `plan` takes for a fact where the model's own files do not say it, or cannot be read: keys of
            config.json, and `parameters` (all of them), `kv_bytes_per_token` (at 16 bit, over all layers) and
            `state_bytes_per_sequence` for an architecture that plan cannot tell from its config.
    """

    id: HubId
    revision: Revision = "main"
    source: str = Field(default="hub", pattern=_SOURCE, max_length=4096)
    licenses: Words | None = None
    sizes: Annotated[dict[Size, Annotated[int, Field(ge=0, le=2**53)] | bool | Word], Field(max_length=32)] | None = (
        None
    )


def ready_checkpoint(recipe: QuantizationRecipe) -> ModelSource | None:
    """Where a recipe's checkpoint comes from that somebody else quantized; None for one that is made here."""
    if recipe.source is None:
        return None
    if "://" in recipe.source:
        return ModelSource(id=f"ready/{recipe.name}", source=recipe.source)
    return ModelSource(id=recipe.source, revision=recipe.revision)


class Watch(ConfigModel):
    """Release by itself when the hub has a new commit on the watched revision.

    Attributes:
        poll_minutes: How often the hub is polled.
        quiet_minutes: A commit is released when no other followed it for this long, so that several
            commits of one upload count as one.
        rebuilds_per_day: Most releases started in 24 hours; a later commit waits its turn.
    """

    poll_minutes: PositiveMinutes = 5.0
    quiet_minutes: Minutes = 10.0
    rebuilds_per_day: Small = 4


LadderStrategy = Literal["climb", "every"]
LadderObjective = Literal["size", "cost"]


class Ladder(ConfigModel):
    """In which order recipes are tried, and when to stop. Each target has a ladder of the recipes that are legal there.

    Attributes:
        strategy: `climb` tries the smallest recipe first and the next one only when it did not pass its accuracy gate;
            `every` tries all of them at once: more work, a whole table, and less time where there are machines for it.
        objective: `size` releases the smallest recipe that passed; `cost` builds, serves and load-tests each recipe
            that passed, in each variant of the target, and releases what produces a million output tokens for the
            least money within accuracy and service level.
    """

    strategy: LadderStrategy = "climb"
    objective: LadderObjective = "size"


class ExpectedScore(ConfigModel):
    """The range of scores that is right for a task: shares, from 0 to 1.

    Attributes:
        minimum: Lowest score that is right.
        maximum: Highest score that is right.
        source: Where the figures are from, as people look it up: `model card, 2026-05`.
    """

    minimum: Fraction
    maximum: Fraction
    source: str = Field(min_length=1, max_length=200)

    @model_validator(mode="after")
    def _is_a_range(self) -> ExpectedScore:
        if self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum:g} is above maximum {self.maximum:g}")
        return self


class Baseline(ConfigModel):
    """The unquantized model that every candidate is compared with.

    Attributes:
        dtype: Precision it is loaded, evaluated and, as recipe `none`, served in.
        expected: What it should score, by task of `evaluation.tasks`; a group of tasks stands for all of its items. A
            baseline whose score is not in the range is ANOMALOUS, and nothing is compared with it.
    """

    dtype: Precision = "bfloat16"
    expected: Annotated[dict[Word, ExpectedScore], Field(max_length=1024)] = Field(default={})


class TaskOptions(ConfigModel):
    """How a task, or a group of tasks, is prompted and judged; what is left out follows the task's file and common use.

    Attributes:
        metric: lm-eval's name of the metric that the task is judged by. None takes the one that published results
            use: `acc_norm` where the task has it beside `acc` (HellaSwag, ARC), `f1` for DROP, else the first in its
            file that gives single items a share from 0 to 1 of which more is better.
        filter: lm-eval's name of the reading of an answer. None takes `flexible-extract` for GSM8K, or the first in
            its file.
        num_fewshot: Solved examples in each prompt; None for the number in the task's file, or none at all.
    """

    metric: Word | None = None
    filter: Word | None = None
    num_fewshot: Annotated[int, Field(ge=0, le=100)] | None = None


class CheckpointEvaluation(ConfigModel):
    """How a checkpoint is evaluated: what decides which items it is asked, and how.

    Attributes:
        tasks: lm-eval tasks scored on the checkpoint (log-likelihood and generative ones).
        task_options: Metric, filter, examples and chat format by task, or by group for all of its tasks.
        chat_template: Ask in the chat format of the checkpoint's tokenizer. `auto` does so where the tokenizer has one
            for tasks that generate text, as users of a chat model do; tasks that compare the likelihoods of given
            texts are asked without, as published comparisons of quantized models are. True asks all tasks so. Examples
            are turns of their own.
        chat_template_arguments: Handed to the chat template, e.g. `{enable_thinking: false}`.
        think_end: What ends a thought, e.g. `</think>`: only what follows it is scored, and stop words do not end a
            thought. None for models that do not think.
        max_gen_toks: Most tokens of an answer, thoughts included; None for the number in the task's file, or lm-eval's
            256.
        generation: How answers are generated, in lm-eval's words (`do_sample`, `temperature`, `top_p`, `top_k`,
            `min_p`, `repetition_penalty`), over what a task's file says. Empty is greedy and without penalties,
            whatever the model's generation_config.json says.
        repeats: Answers to each generative item, drawn with seeds of their own; its score is their mean. More than one
            needs `generation` to sample.
        scorer: lm-eval's class that asks a checkpoint: `hf` (Transformers), `vllm` or `trtllm`; `auto` is `vllm` where
            there are a GPU and vLLM, else `hf`. A candidate is asked by what its baseline was asked by.
        scorer_arguments: Handed to that class, e.g. `{tensor_parallel_size: 2}`.
        allow_task_code: Task files of `task_directory` may run Python that lies beside them (`!function`).
        allow_generated_code: Tasks may run code that the model writes, on the machine that evaluates (HumanEval, MBPP).
        limit: Items per task; None for all.
        batch_size: Requests a forward pass of `hf`; `auto` takes what fits into the device's memory.
        maximum_length: Context length given to the model, in tokens.
    """

    tasks: Annotated[Words, Field(min_length=1)]
    task_options: Annotated[dict[Word, TaskOptions], Field(max_length=1024)] = Field(default={})
    chat_template: Literal["auto"] | bool = "auto"
    chat_template_arguments: Arguments = Field(default={})
    think_end: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    max_gen_toks: Tokens | None = None
    generation: Arguments = Field(default={})
    repeats: Annotated[Items, Field(le=64)] = 1
    scorer: Literal["auto", "hf", "vllm", "trtllm"] = "auto"
    scorer_arguments: Arguments = Field(default={})
    allow_task_code: bool = False
    allow_generated_code: bool = False
    limit: Items | None = None
    batch_size: BatchSize | Literal["auto"] = "auto"
    maximum_length: Annotated[Tokens, Field(ge=8)] = 2048

    @property
    def samples(self) -> bool:
        """Whether answers are drawn, and not greedy."""
        return bool(self.generation.get("do_sample"))

    @model_validator(mode="after")
    def _generation_is_possible(self) -> Self:
        if self.repeats > 1 and not self.samples:
            problem = "repeats: greedy answers are all alike; set generation: {do_sample: true, temperature: ...}"
            raise ValueError(problem)
        if self.chat_template_arguments.get("enable_thinking") and self.think_end is None:
            raise ValueError("chat_template_arguments turns thinking on: name what ends a thought, think_end: </think>")
        if "trust_remote_code" in self.scorer_arguments:
            raise ValueError("scorer_arguments: trust_remote_code is never on, no code of a checkpoint runs")
        if own := sorted(self.scorer_arguments.keys() & {"pretrained", "model", "tokenizer", "dtype"}):
            problem = f"scorer_arguments: {', '.join(own)} would judge another model than the one that is served"
            raise ValueError(problem)
        if self.scorer_arguments.get("data_parallel_size", 1) != 1:
            raise ValueError(
                "scorer_arguments: data_parallel_size hands each part of the items to a process that lm-eval starts, "
                "which says of no answer how it ended; set tensor_parallel_size to the number of GPUs"
            )
        return self


_SERVED_GENERATION = {"do_sample", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"}


class Evaluation(CheckpointEvaluation):
    """What the accuracy gates measure.

    Attributes:
        task_directory: Directory with lm-eval task files, relative to `configs/`; None for lm-eval's own.
        served_tasks: Tasks scored again through the serving endpoint; with TensorRT-LLM generative ones only.
        data_source: Where the data sets come from that the tasks' files name: `hub` (or its mirror, `hub.endpoint` of
            the deployment) or a directory (`file:///absolute/path`) with the files of each data set in
            `organisation/name/`.
        data_revisions: Branch, tag or commit by data set, as the tasks' files name it; what is left out is read at the
            revision in its task's file, or at `main`. The `eval_data` stage pins each to a commit, once a release.
    """

    task_directory: PathText | None = None
    served_tasks: Annotated[Words, Field(min_length=1)]
    data_source: str = Field(default="hub", pattern=_DATA_SOURCE, max_length=4096)
    data_revisions: Annotated[dict[DataSetName, Revision], Field(max_length=1024)] = Field(default={})

    @model_validator(mode="after")
    def _served_are_scored(self) -> Evaluation:
        if missing := sorted(set(self.served_tasks) - set(self.tasks)):
            raise ValueError(f"served_tasks {missing} are not in tasks: the baseline would have no scores for them")
        if others := sorted(self.generation.keys() - _SERVED_GENERATION):
            raise ValueError(f"generation: a served model cannot be asked with {', '.join(others)}")
        return self

    @property
    def asked(self) -> Evaluation:
        """What is asked, wherever the data come from: those who score are given the data themselves."""
        return self.model_copy(update={"data_source": "hub", "data_revisions": {}})


class Drill(ConfigModel):
    """A fault put into the candidate's production slot on purpose, to prove that rollback works here.

    Attributes:
        delay_milliseconds: Added before the first token of every answer.
    """

    delay_milliseconds: PositiveMilliseconds


class Approval(ConfigModel):
    """The human decision before production.

    Attributes:
        required: False lets the release go on by itself.
        timeout_hours: An unanswered request counts as a denial after this time.
    """

    required: bool = True
    timeout_hours: PositiveHours = 24.0


class ReleaseSettings(ConfigModel):
    """What a release config says itself, and does not name.

    Attributes:
        name: The release's name; the DAG is `release__<name>`.
        description: One line for the UI and the report.
        ladder: In which order recipes are tried, and whether all of them are.
    """

    name: Name
    description: Line = ""
    model: ModelSource
    baseline: Baseline = Baseline()
    ladder: Ladder = Ladder()
    evaluation: Evaluation
    workload: Workload
    approval: Approval = Approval()
    drill: Drill | None = None


class ReleaseConfig(ReleaseSettings):
    """A release config as written: recipes, targets and policy by name.

    Attributes:
        recipes: Recipes to try; the cheapest one that passes its accuracy gate is released, target by target.
        targets: Targets to build for, in the order of their promotion.
        places: The deployment's place for a target, by target name; a target without one goes to the place of its own
            name. A place serves one model: a second model on the same target needs a place of its own.
        policy: The gate policy.
        deployment: The deployment file that binds the release to places.
        watch: Release by itself what is new on the hub; None for no watching.
        schedule: Cron expression for runs that release what is new since the last one, beside `watch` or instead of
            it; None for none. Missed ones are never made up for.
        budget: What it may take by its plan before a person is asked.
    """

    recipes: Annotated[Names, Field(min_length=1)]
    targets: Annotated[Names, Field(min_length=1)]
    places: Annotated[dict[Name, Name], Field(max_length=256)] = Field(default={})
    policy: Name
    deployment: Name
    watch: Watch | None = None
    schedule: Cron | None = None
    budget: Budget = Budget()

    @field_validator("recipes", "targets")
    @classmethod
    def _named_once(cls, names: tuple[Name, ...]) -> tuple[Name, ...]:
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{', '.join(twice)} is named twice")
        return names

    @model_validator(mode="after")
    def _what_is_named_is_there(self) -> ReleaseConfig:
        if unknown := sorted(self.places.keys() - set(self.targets)):
            raise ValueError(f"places names {', '.join(unknown)}, not among targets")
        taken = [self.place_of(target) for target in self.targets]
        if twice := sorted({place for place in taken if taken.count(place) > 1}):
            raise ValueError(f"several targets go to place {', '.join(twice)}")
        if unknown := sorted(self.baseline.expected.keys() - set(self.evaluation.tasks)):
            raise ValueError(f"baseline.expected names {', '.join(unknown)}, not among evaluation.tasks")
        return self

    def place_of(self, target: str) -> str:
        """Name of the deployment's place that a target goes to."""
        return self.places.get(target, target)


class ResolvedRelease(ReleaseSettings):
    """A release config with every name replaced by what it names, and every path made absolute."""

    recipes: Annotated[tuple[QuantizationRecipe, ...], Field(max_length=16_384)]
    targets: Annotated[tuple[Target, ...], Field(max_length=256)]
    policy: Policy

    def recipe(self, name: str) -> QuantizationRecipe:
        """The recipe of that name.

        Raises:
            KeyError: The release has no such recipe.
        """
        return {recipe.name: recipe for recipe in self.recipes}[name]

    def target(self, name: str) -> Target:
        """The target of that name, or as a candidate of it has it (`release.candidate`).

        Raises:
            KeyError: The release has no such target.
        """
        plain, of_candidate, rest = name.partition(":")
        target = {target.name: target for target in self.targets}[plain]
        return target.varied(rest.partition(":")[2]) if of_candidate else target
