"""lm-eval as the scorer: a model of one of its own classes is asked its own tasks, and each document is a scored item.

    loaded = load_tasks(task_directory, eval_data, evaluation, evaluation.tasks)
    scorer = Scorer(checkpoint_model("hf", checkpoint, evaluation, "bfloat16"), tokenizer, loaded, evaluation, workdir)
    scorer.try_tasks()
    items = scorer.ask([("gsm8k", 7), ("gsm8k", 12)])

Prompts, filters, metrics and answers are lm-eval's. What is added stands between it and the model (`AskedModel`): a
prompt that would be cut is refused, a likelihood that is not a number is found, answers that ended by length are
counted, and thoughts are stripped after that. It keeps the answers, so that a killed run resumes.
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_EVALUATE_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TQDM_DISABLE", "1")  # a task log has lines, not bars

import numpy as np
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED
from lm_eval.evaluator import evaluate
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text

from llm_pipeline.accuracy.evaluation import NotFinite, TaskMetric, judged_by, share_of
from llm_pipeline.accuracy.gate import ItemPlace, document_clusters
from llm_pipeline.accuracy.tasks import LoadedTasks, task_failure
from llm_pipeline.artifacts.checkpoint_directory import check_directory
from llm_pipeline.artifacts.checkpoint_loading import load_config
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.artifacts.model_rules import read_model_rules
from llm_pipeline.base.digest import sha256_json
from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.base.progress import Progress
from llm_pipeline.config.release import CheckpointEvaluation

_DAY = datetime(2024, 7, 26, tzinfo=UTC)
"""For chat templates that print the date, as arms are asked on different days: Llama 3.1's default."""
_LOGITS_BYTES = 4 * 2**30
"""Of logits at once, in float32 and before, on a CPU."""
_LOGITS_SHARE = 0.2
"""The same on a GPU, of what the weights leave of its memory."""
_MOST_SEQUENCES = {"cpu": 64, "cuda": 256}


class AskedModel(LM):  # type: ignore[misc]  # lm_eval is untyped
    """What lm-eval asks: it checks and counts what goes to and comes from the model below it, and keeps the answers.

    lm-eval's own cache of them in SQLite commits each answer twice, which takes as long as a small model does, and has
    no place for how an answer ended.

    Attributes:
        numbers: The documents that are asked now, by task: lm-eval numbers them from 0 in each call.
        seed: Answers that are drawn with another seed are other answers.
        written: What the model wrote for each item, thoughts included, and whether it ended by length.
    """

    def __init__(self, model: LM, tokenizer: Any, evaluation: CheckpointEvaluation, answers: Path) -> None:
        super().__init__()
        self._model, self._tokenizer, self._evaluation = model, tokenizer, evaluation
        self.numbers: Mapping[str, Sequence[int]] = {}
        self.seed = 0
        self.written: dict[ItemPlace, tuple[str, bool]] = {}
        self._requests: list[Instance] = []
        self._answers: dict[str, Any] = {}
        answers.parent.mkdir(parents=True, exist_ok=True)
        self._file = answers.open("a+b", buffering=0)
        self._file.seek(0)
        for line in self._file.read().split(b"\n"):
            with suppress(ValueError):  # a line that was torn is asked again
                key, answer = json.loads(line)
                self._answers[key] = answer
        self._file.write(b"\n")  # what follows a torn line is a line of its own
        model.set_cache_hook(self)
        model.refuse = self._refuse

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Log-likelihood of each request's continuation, and whether it is the greedy one.

        Raises:
            ConfigError: A continuation has no tokens of its own, or a request is too long.
            NotFinite: One is NaN or infinite.
        """
        answers = self._answered("loglikelihood", requests, None)
        for one, (value, _) in zip(requests, answers, strict=True):
            if not math.isfinite(value):
                hint = "the weights or their scales overflow: quantize otherwise, or evaluate in bfloat16"
                raise NotFinite(f"a log-likelihood is {value}", where=self._where(one), hint=hint)
        return [(value, greedy) for value, greedy in answers]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Log-likelihood of whole texts; no task is judged by it."""
        return list(self._model.loglikelihood_rolling(requests))

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """The text that follows each prompt up to its stop words, without thoughts.

        Raises:
            ConfigError: A prompt is too long.
        """
        thinks = self._evaluation.think_end
        wanted = [normalize_gen_kwargs(one.args[1]) for one in requests]
        self._refuse_what_would_be_cut(requests, [one["max_gen_toks"] for one in wanted])
        groups = defaultdict[str, list[int]](list)
        for number, one in enumerate(requests):
            groups[json.dumps(one.args[1], sort_keys=True)].append(number)
        texts = [""] * len(requests)
        for options, numbers in groups.items():
            # all of the model's end tokens end an answer, and no stop word ends a thought
            own = {**json.loads(options), **self._model.request_options, **({} if thinks is None else {"until": []})}
            asked = [copy(requests[number]) for number in numbers]
            for one in asked:
                one.arguments = (one.args[0], own)
            for number, answer in zip(numbers, self._answered("generate_until", asked, own), strict=True):
                self.written.setdefault(self._place(requests[number]), answer)
                texts[number] = answer[0]
        return [postprocess_generated_text(text, own["until"], thinks) for text, own in zip(texts, wanted, strict=True)]

    def _answered(self, kind: str, requests: list[Instance], options: Mapping[str, Any] | None) -> list[Any]:
        """Answers to requests with the same options; what an earlier attempt asked is not asked again."""
        self._requests, self._asked = requests, [kind, options, self.seed]
        self._model.repeat = self.seed
        keys = [self._key(one.args) for one in requests]
        left = {key: one for key, one in zip(keys, requests, strict=True) if key not in self._answers}
        self._progress = Progress("evaluating", len(left), "answers" if options else "likelihoods")
        if left:
            getattr(self._model, kind)(list(left.values()))
        return [self._answers[key] for key in keys]

    def add_partial(self, kind: str, request: tuple[Any, ...], answer: Any) -> None:
        """Keep an answer as soon as the model's class has it: it calls this as the hook of lm-eval's cache."""
        if kind == "generate_until" and isinstance(answer, str):
            answer = (answer, self._model.ended_by_length(request, answer))
        key = self._key(request)
        self._answers[key] = answer
        self._file.write(json.dumps([key, answer]).encode() + b"\n")
        self._progress.advance()

    def _key(self, request: tuple[Any, ...]) -> str:
        """By its texts: lm-eval's classes change the options before they hand over an answer."""
        return sha256_json([*self._asked, *(text for text in request if isinstance(text, str))])

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as a prompt, by the model's own class."""
        return str(self._model.apply_chat_template(chat_history, add_generation_prompt))

    @property
    def tokenizer_name(self) -> str:
        """For lm-eval's cache of prompts, which is not used."""
        return ""

    def _refuse_what_would_be_cut(self, requests: Sequence[Instance], most: Sequence[int]) -> None:
        begin = self._tokenizer.bos_token or "\0"
        prompts = [one.args[0].removeprefix(begin) for one in requests]
        sizes = [len(tokens) for tokens in self._tokenizer(prompts, verbose=False)["input_ids"]]
        room = getattr(self._model, "longest", self._evaluation.maximum_length)
        for one, size, answer in zip(requests, sizes, most, strict=True):
            if size + answer > room:
                raise _too_long(size, size + answer, room, self._where(one))

    def _refuse(self, texts: tuple[str, str], tokens: int, room: int) -> None:
        """Refuse a context with its continuation, which alone has tokens 0 where it shares its own with the context."""
        where = self._where(next(one for one in self._requests if one.args == texts))
        if tokens:
            raise _too_long(tokens, tokens + 1, room, where)
        raise ConfigError(
            f"the choice {texts[1][:40]!r} has no token of its own: one token spans the context and the choice",
            where=where,
            hint="set target_delimiter in a task file of your own, choose another metric or task (task_options), or "
            "leave the task out",
        )

    def _place(self, one: Instance) -> ItemPlace:
        return str(one.task_name), self.numbers[one.task_name][one.doc_id]

    def _where(self, one: Instance) -> str:
        task, number = self._place(one)
        return f"item {number} of task {task}"


def _too_long(tokens: int, needed: int, room: int, where: str) -> ConfigError:
    return ConfigError(
        f"a prompt of {tokens} tokens needs {needed} with its answer, and {room} fit: its beginning would be cut off",
        where=where,
        hint=f"set evaluation.maximum_length to {needed} or more if the model takes them, use fewer examples for this "
        "task, or leave it out",
    )


class Scorer:
    """Asks one model the documents of some tasks, in any portions.

    Args:
        model: Of a class of lm-eval, or a served one.
        tokenizer: The model's, of Transformers.
        loaded: The tasks.
        evaluation: How they are asked.
        answers: File that keeps the answers, of this model and evaluation alone.
        metrics: By which metric each task is judged, as the baseline's evaluation says; None to find out by
            `try_tasks`.
        harness: What else must be the same wherever these items are asked.

    Attributes:
        asked: What lm-eval asks.
        clusters: The cluster of each document of each task, by its number; an empty name is none.
        metrics: By task.
    """

    def __init__(  # noqa: PLR0917
        self,
        model: LM,
        tokenizer: Any,
        loaded: LoadedTasks,
        evaluation: CheckpointEvaluation,
        answers: Path,
        metrics: Mapping[str, TaskMetric] | None = None,
        harness: Mapping[str, str] | None = None,
    ) -> None:
        self.asked = AskedModel(model, tokenizer, evaluation, answers)
        self.loaded, self._evaluation, self._harness = loaded, evaluation, harness
        self._begin = begin_token(tokenizer)
        found = tokenizer.chat_template if evaluation.chat_template is not False else None
        self._template = found.get("default") if isinstance(found, dict) else found
        if self._template is None and evaluation.chat_template is True:
            hint = "set evaluation.chat_template to false, or to auto"
            raise ConfigError("the checkpoint's tokenizer has no default chat template", hint=hint)
        self._documents = {}
        for name, task in loaded.tasks.items():
            if task.OUTPUT_TYPE == "generate_until":
                most = {} if evaluation.max_gen_toks is None else {"max_gen_toks": evaluation.max_gen_toks}
                task.set_config("generation_kwargs", {**evaluation.generation, **most}, update=True)
            self._documents[name] = list(task.eval_docs)[: evaluation.limit]
            if not self._documents[name]:
                raise ConfigError("it has no documents: its split is empty", where=f"task {name}")
        self.clusters = {name: document_clusters(own) for name, own in self._documents.items()}
        self.metrics = dict(metrics or {})

    def _chat(self, name: str) -> bool:
        """Whether a task is asked in the model's chat format."""
        return self._template is not None and (self._evaluation.chat_template is True or self._writes(name))

    def try_tasks(self) -> None:
        """Ask two documents of each task, the first and the longest: what cannot be scored is found while it is cheap.

        Raises:
            ConfigError: A task cannot be judged item by item, or not as the release config wants it; or a prompt is
                too long.
            NotFinite: The model is broken.
        """
        places = {
            (name, number)
            for name, own in self._documents.items()
            for number in (0, max(range(len(own)), key=lambda number: len(str(own[number]))))
        }
        if all(map(self._writes, self._documents)):  # a broken model's texts would only look damaged
            name = next(iter(self._documents))
            self.asked.numbers = {name: [0]}
            self.asked.loglikelihood([Instance("loglikelihood", {}, ("The answer is", " 1"), 0, (name, 0, 1))])
        for name, samples in self._answered(sorted(places), seed=0).items():
            task, options = self.loaded.tasks[name], self.loaded.selected.options[name]
            metric, kept = judged_by(name, samples, task.higher_is_better(), options)
            shots = int(task.get_config("num_fewshot") or 0)
            self.metrics[name] = TaskMetric(metric=metric, filter=kept, few_shots=shots, chat_template=self._chat(name))

    def ask(self, places: Sequence[ItemPlace]) -> list[ScoredItem]:
        """Ask some documents, and score them.

        Raises:
            ConfigError: A prompt is too long, a choice has no tokens, or a score is no share.
            NotFinite: A log-likelihood is no number.
        """
        items: dict[ItemPlace, list[ScoredItem]] = {}
        for repeat in range(self._evaluation.repeats):
            again = [place for place in places if repeat == 0 or self._writes(place[0])]
            for name, samples in self._answered(again, seed=repeat).items():
                for sample in samples:
                    if sample["filter"] == self.metrics[name].filter:
                        item = self._item(name, sample)
                        items.setdefault((name, item.item_id), []).append(item)
        return [_mean(items[place]) for place in places]

    def with_greedy_answers(self, items: Sequence[ScoredItem], count: int) -> list[ScoredItem]:
        """The items, with greedy answers where these were drawn: golden prompts are compared with a greedy server.

        Args:
            items: What was asked.
            count: How many generative items are asked again; the answers of others are left out.
        """
        if not self._evaluation.samples:
            return list(items)
        places = [(item.task, item.item_id) for item in items if item.generative][:count]
        for name in dict(places):
            self.loaded.tasks[name].set_config(
                "generation_kwargs", {"do_sample": False, "temperature": 0.0}, update=True
            )
        self._answered(places, seed=0)
        greedy = {place: text for place, (text, _) in self.asked.written.items()}
        return [item.model_copy(update={"completion": greedy.get((item.task, item.item_id), "")}) for item in items]

    def _writes(self, task: str) -> bool:
        return bool(self.loaded.tasks[task].OUTPUT_TYPE == "generate_until")

    def _answered(self, places: Sequence[ItemPlace], seed: int) -> dict[str, list[dict[str, Any]]]:
        """lm-eval's samples of some documents, by task."""
        numbers: dict[str, list[int]] = defaultdict(list)
        for task, number in sorted(places):
            numbers[task].append(number)
        self.asked.numbers, self.asked.seed = numbers, seed
        if seed == 0:
            self.asked.written.clear()
        found: dict[str, list[dict[str, Any]]] = {}
        for chat in (True, False):
            tasks = {name: self.loaded.tasks[name] for name in numbers if self._chat(name) is chat}
            try:
                found |= self._evaluated(tasks, numbers, seed, chat=chat) if tasks else {}
            except torch.OutOfMemoryError as error:
                raise Unsupported(
                    "a batch does not fit into the device's memory",
                    where=str(error).split(". ")[0],
                    hint="lower evaluation.batch_size or evaluation.maximum_length",
                ) from error
            except Exception as error:
                raise task_failure(error, "lm-eval cannot ask", ", ".join(tasks)) from error
        return found

    def _evaluated(
        self, tasks: Mapping[str, Any], numbers: Mapping[str, Sequence[int]], seed: int, *, chat: bool
    ) -> dict[str, list[dict[str, Any]]]:
        """One call of lm-eval, with the seeds of its command line."""
        random.seed(DEFAULT_RANDOM_SEED)
        np.random.seed(DEFAULT_OTHER_SEED)  # noqa: NPY002 - lm-eval's tasks draw from it
        torch.manual_seed(DEFAULT_OTHER_SEED + seed)
        for task in tasks.values():
            task.set_fewshot_seed(DEFAULT_OTHER_SEED)
        result = evaluate(
            lm=self.asked,
            task_dict={"tasks": dict(tasks), "groups": {}},
            samples={name: list(numbers[name]) for name in tasks},
            bootstrap_iters=0,
            apply_chat_template=chat,
            fewshot_as_multiturn=chat,
            confirm_run_unsafe_code=self._evaluation.allow_generated_code,
        )
        return dict(result["samples"])

    def _item(self, name: str, sample: Mapping[str, Any]) -> ScoredItem:
        metric, number, writes = self.metrics[name].metric, int(sample["doc_id"]), self._writes(name)
        value = sample.get(metric)
        score = share_of(value)
        if score is None and value is not None:
            raise ConfigError(
                f"its {metric} is {str(value)[:40]}, no share from 0 to 1",
                where=f"item {number} of task {name}",
                hint=f"name another metric in evaluation.task_options.{name}, or leave the task out",
            )
        prompt, options = sample["arguments"][0][:2]
        asked = normalize_gen_kwargs(options) if writes else {}
        text, ended_by_length = self.asked.written[name, number] if writes else ("", False)
        stops = () if self._evaluation.think_end else asked.get("until", ())
        return ScoredItem(
            task=name,
            item_id=number,
            fingerprint=sha256_json([sample[f"{part}_hash"] for part in ("doc", "prompt", "target")]),
            score=score,
            generative=writes,
            cluster=self.clusters[name][number],
            prompt=prompt.removeprefix(self._begin) if writes else "",
            completion=text,
            stop=tuple(word for word in stops if word),
            maximum_tokens=asked.get("max_gen_toks"),
            chance=None if self.loaded.tasks[name].get_config("process_results") else _chance(sample, writes=writes),
            cut=ended_by_length,
        )

    @property
    def harness(self) -> dict[str, str]:
        """What must be the same wherever these items are asked; see `refuse_other_harness`."""
        said = self._evaluation
        facts = {
            **(self._harness or {}),
            "lm-eval": metadata.version("lm_eval"),
            "generation": json.dumps([said.generation, said.max_gen_toks, said.repeats, said.think_end]),
        }
        for name, task in self.loaded.tasks.items():
            metric, chat = self.metrics[name], [self._template, said.chat_template_arguments]
            facts[f"task {name}"] = task_digest(task)
            facts[f"chat template of {name}"] = sha256_json(chat) if metric.chat_template else "none"
            facts[f"score of {name}"] = f"{metric.metric}, {metric.filter}"
        return facts


def task_digest(task: Any) -> str:
    """Digest of what a task says, wherever its file lies, which lm-eval notes beside it."""
    config = task.dump_config()
    config["metadata"] = {key: value for key, value in config["metadata"].items() if key != "config_source"}
    return sha256_json(json.dumps(config, default=lambda value: type(value).__name__, sort_keys=True))


def _mean(items: Sequence[ScoredItem]) -> ScoredItem:
    """The first of several answers to a document, with the mean of their scores."""
    scores = [item.score for item in items if item.score is not None]
    return items[0].model_copy(update={"score": sum(scores) / len(scores) if len(scores) == len(items) else None})


def _chance(sample: Mapping[str, Any], *, writes: bool) -> float | None:
    """What guessing scores on an item; nothing on a text that has to be written."""
    # mutual information asks for each choice a second time, without its context
    choices = sum(texts[0] != "" for texts in sample["arguments"]) or len(sample["arguments"])
    if writes or choices == 1:
        return 0.0
    target = sample["target"]
    return (len(target) if isinstance(target, list) else 1) / choices


def begin_token(tokenizer: Any) -> str:
    """What a tokenizer of Transformers puts before every text; empty for nothing."""
    adds = tokenizer.bos_token_id is not None and tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    return str(tokenizer.bos_token) if adds else ""


def template_arguments(evaluation: CheckpointEvaluation) -> dict[str, Any]:
    """What a chat template is given in all arms."""
    return {"date_string": f"{_DAY:%d %b %Y}", "strftime_now": _DAY.strftime, **evaluation.chat_template_arguments}


def tokenizer_digest(tokenizer: Any) -> str:
    """Digest of what a tokenizer does, whatever its files look like."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    kept = {key: value for key, value in content.items() if key not in ("truncation", "padding")}
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return sha256_json([kept, special])


def scorer_here(wanted: str) -> str:
    """The class that asks a checkpoint on this host."""
    if wanted != "auto":
        return wanted
    return "vllm" if torch.cuda.is_available() and find_spec("vllm") else "hf"


class CheckedModel:
    """Before a class of lm-eval: refuses what it would cut, and says which answers ended by length.

    lm-eval's classes drop that. They hand each answer to the cache's hook as soon as it is decoded, so that what was
    seen of the tokens just before belongs to it.
    """

    longest: int
    end_tokens: tuple[int, ...]
    repeat: int
    refuse: Callable[[tuple[str, str], int, int], None]

    def loglikelihood(self, requests: list[Instance], **_: Any) -> Any:
        """As lm-eval's own, without its progress bar."""
        return super().loglikelihood(requests, disable_tqdm=True)  # type: ignore[misc]

    def _loglikelihood_tokens(self, requests: Sequence[Any], **options: Any) -> Any:
        for texts, before, after in requests:
            tokens = len(before) + len(after)
            if texts is not None and (not after or tokens >= self.longest):
                self.refuse(texts, tokens if after else 0, self.longest)
        return super()._loglikelihood_tokens(requests, **{**options, "disable_tqdm": True})  # type: ignore[misc]

    def generate_until(self, requests: list[Instance], **_: Any) -> Any:
        """As lm-eval's own, without its progress bar."""
        return super().generate_until(requests, disable_tqdm=True)  # type: ignore[misc]


class _OfTransformers(CheckedModel):
    def tok_decode(self, tokens: Any, skip_special_tokens: bool = True) -> str:
        ended = isinstance(tokens, int)
        if not ended:
            end = next((place for place, token in enumerate(tokens) if token in self.end_tokens), len(tokens))
            ended, tokens = end < len(tokens), tokens[:end]  # an end token may be ordinary text
        text = str(super().tok_decode(tokens, skip_special_tokens=skip_special_tokens))  # type: ignore[misc]
        self._decoded = (tokens, text, ended)
        return text

    def ended_by_length(self, request: tuple[str, Mapping[str, Any]], text: str) -> bool:
        tokens, whole, ended = self._decoded
        return not ended and text == whole and len(tokens) >= normalize_gen_kwargs(request[1])["max_gen_toks"]


class _OfEngines(CheckedModel):
    """vLLM and TensorRT-LLM say why an answer ended."""

    def watch(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        """The engine's `generate`, with the reasons of its last call kept."""

        def watched(*arguments: Any, **options: Any) -> Any:
            if "use_tqdm" in options:
                options["use_tqdm"] = False  # vLLM divides by the time of a bar, which a disabled one does not take
            outputs = generate(*arguments, **options)
            self._reasons = deque(one.outputs[0].finish_reason for one in outputs)
            return outputs

        return watched

    def ended_by_length(self, request: tuple[str, Mapping[str, Any]], text: str) -> bool:  # noqa: ARG002
        return bool(self._reasons.popleft() == "length")


def checkpoint_model(scorer: str, checkpoint: Path, tokenizer: Any, evaluation: CheckpointEvaluation, dtype: str) -> LM:
    """A checkpoint as a model of one of lm-eval's classes, greedy and without penalties unless it is told otherwise.

    `hf` reads exports of modelopt back; `vllm` and `trtllm` read a checkpoint as it is.

    Args:
        scorer: The class.
        checkpoint: A Hugging Face checkpoint.
        tokenizer: Its tokenizer.
        evaluation: Length, batch size, and what the class and the chat template are given.
        dtype: Precision of everything that is not quantized. A CPU without AVX-512 computes in float32 with
            weights of bfloat16, as its engine does.

    Raises:
        IntegrityError: The checkpoint is damaged.
        Unsupported: The class cannot read it.
    """
    rules = read_model_rules(checkpoint)
    positions = getattr(load_config(checkpoint).get_text_config(), "max_position_embeddings", None)
    longest = min(evaluation.maximum_length, positions or evaluation.maximum_length)
    given = {"chat_template_args": template_arguments(evaluation), **evaluation.scorer_arguments}
    if scorer != "hf":
        check_directory(checkpoint)
        model = _engine_model(scorer, checkpoint, dtype, longest, given)
        model.request_options = {"stop_token_ids": list(rules.end_tokens)} if rules.end_tokens else {}
    else:
        from lm_eval.models.huggingface import HFLM

        from llm_pipeline.quantization.readback import load_model

        logging.getLogger(HFLM.__module__).setLevel(logging.ERROR)  # it warns of every model that is not a name
        device = "cuda" if torch.cuda.is_available() else "cpu"
        loaded = load_model(checkpoint, getattr(torch, dtype), device)
        if (device, dtype, torch.backends.cpu.get_cpu_capability()) == ("cpu", "bfloat16", "AVX2"):
            loaded = loaded.float()  # the same weights; without AVX-512, bfloat16's arithmetic takes five times as long
        size = evaluation.batch_size
        if size == "auto":
            memory = torch.cuda.mem_get_info()[0] * _LOGITS_SHARE if device == "cuda" else _LOGITS_BYTES
            vocabulary = loaded.config.get_text_config().vocab_size
            size = max(1, min(_MOST_SEQUENCES[device], int(memory / (longest * vocabulary * 10))))
        # half precision would round log-likelihoods to sixteenths of a nat, and make ties out of choices
        own = {"pretrained": loaded, "tokenizer": tokenizer, "batch_size": size, "softmax_dtype": "float32"}
        model = type("CheckedHFLM", (_OfTransformers, HFLM), {})(**{**own, "max_length": longest, **given})
        model.request_options = {}
    model.longest, model.end_tokens = longest, rules.end_tokens
    return model


def _engine_model(scorer: str, checkpoint: Path, dtype: str, longest: int, given: Mapping[str, Any]) -> Any:
    own: dict[str, Any] = {"model": str(checkpoint), "max_input_len": longest, "max_output_len": 1}
    try:
        if scorer == "vllm":
            os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # CUDA runs here, which no fork survives
            from lm_eval.models.vllm_causallms import VLLM as Engine  # noqa: N811

            own = {"pretrained": str(checkpoint), "max_length": longest, "generation_config": "vllm"}
        else:
            from lm_eval.models.trtllm_causallms import TRTLLM as Engine  # noqa: N811
        model: Any = type("CheckedEngine", (_OfEngines, Engine), {})(**{"dtype": dtype, **own, **given})
    except Exception as error:
        raise Unsupported(
            f"{scorer} cannot load the checkpoint: {type(error).__name__}: {str(error).splitlines()[0][:300]}",
            where=str(checkpoint),
            hint="set evaluation.scorer: hf, which reads exports of modelopt back, or evaluation.scorer_arguments",
        ) from error
    engine = model.model if scorer == "vllm" else model.llm
    engine.generate = model.watch(engine.generate)
    return model


def use_processors() -> None:
    """With a GPU, tokenize on all processors; without one, leave all but one to the rest of the pipeline."""
    if torch.cuda.is_available():
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
    else:
        torch.set_num_threads(1)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # vLLM computes here then, with this thread, and starts soon
