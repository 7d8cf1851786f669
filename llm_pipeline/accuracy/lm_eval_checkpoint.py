"""lm-eval on a checkpoint directory, plain or exported by modelopt, in this process and without a network.

No request cache is used: lm-eval's cache key does not name the model, so a second checkpoint would be given
the first one's answers.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TQDM_DISABLE", "1")  # a task log has lines, not bars: progress is logged below

import lm_eval
import torch
from lm_eval.models.huggingface import HFLM
from transformers import AutoTokenizer

from llm_pipeline.accuracy.evaluation import EvaluationSummary, summarise
from llm_pipeline.accuracy.items import ScoredItem
from llm_pipeline.accuracy.lm_eval_results import scored_items, task_manager
from llm_pipeline.config.release import Evaluation
from llm_pipeline.errors import Unsupported
from llm_pipeline.logging import get_logger
from llm_pipeline.quantization.readback import load_model

log = get_logger(__name__)

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
_DISTRIBUTIONS = ("lm_eval", "torch", "transformers")
_PROGRESS_SECONDS = 5.0
_FEW_SHOT_SEED = 1234


@dataclass(frozen=True)
class CheckpointEvaluation:
    """An evaluation in memory."""

    items: tuple[ScoredItem, ...]
    summary: EvaluationSummary


def evaluate_checkpoint(
    checkpoint: Path, task_directory: Path | None, evaluation: Evaluation, dtype: str, *, device: str | None = None
) -> CheckpointEvaluation:
    """Score every item of the evaluation's tasks.

    Args:
        checkpoint: A Hugging Face checkpoint, plain or with modelopt's quantization.
        task_directory: Where the tasks' files are; None for lm-eval's own tasks.
        evaluation: Tasks, limits and batch size.
        dtype: Precision of everything that is not quantized.
        device: Where to run; None takes a GPU if there is one.

    Raises:
        IntegrityError: The checkpoint is damaged.
        ConfigError: A task is unknown or its data are unreadable.
        Unsupported: The checkpoint's format cannot be read back.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    started = time.monotonic()
    model = _harness_model(checkpoint, evaluation, dtype, device)
    seconds = {"load": round(time.monotonic() - started, 3)}
    log.info("checkpoint loaded", seconds=seconds["load"], device=device, dtype=dtype)
    manager, items = task_manager(task_directory), list[ScoredItem]()
    for task in evaluation.tasks:
        started = time.monotonic()
        items += _evaluate(model, manager, task, evaluation)
        seconds[task] = round(time.monotonic() - started, 3)
        log.info("task evaluated", task=task, seconds=seconds[task])
    versions = {name: metadata.version(name) for name in _DISTRIBUTIONS}
    return CheckpointEvaluation(tuple(items), summarise(items, seconds, versions))


def use_one_cpu_thread() -> None:
    """Leave the other cores to the rest of the pipeline, unless a GPU does the work anyway."""
    if not torch.cuda.is_available():
        torch.set_num_threads(1)


def _harness_model(checkpoint: Path, evaluation: Evaluation, dtype: str, device: str) -> HFLM:
    if dtype not in _DTYPES:
        raise Unsupported(f"no dtype {dtype!r}: there are {sorted(_DTYPES)}", where=str(checkpoint))
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True, trust_remote_code=False)
    logging.getLogger("lm_eval.models.huggingface").addFilter(_is_not_about_the_constructor)
    return _HarnessModel(
        pretrained=load_model(checkpoint, _DTYPES[dtype], device),
        tokenizer=tokenizer,
        device=device,
        batch_size=evaluation.batch_size,
        max_length=evaluation.maximum_length,
        # The served endpoint tokenizes plain text with the tokenizer's own template; so does this lane.
        add_bos_token=_adds_begin_token(tokenizer),
    )


def _is_not_about_the_constructor(record: logging.LogRecord) -> bool:
    """False for the advice lm-eval gives whenever it is handed a model instead of a name."""
    return "`pretrained`" not in record.getMessage()


def _adds_begin_token(tokenizer: Any) -> bool:
    tokens = tokenizer("a")["input_ids"]
    return tokenizer.bos_token_id is not None and tokens[:1] == [tokenizer.bos_token_id]


def _evaluate(model: HFLM, manager: Any, task: str, evaluation: Evaluation) -> Sequence[ScoredItem]:
    # What `simple_evaluate` does, less its changes to the process's logging and its calls of git.
    loaded = manager.load([task])
    for leaf in loaded["tasks"].values():
        if leaf.get_config("num_fewshot") is None:
            leaf.set_config(key="num_fewshot", value=0)
        leaf.set_fewshot_seed(seed=_FEW_SHOT_SEED)
    results = lm_eval.evaluate(
        lm=model, task_dict=loaded, limit=evaluation.limit, bootstrap_iters=0, log_samples=True, cache_requests=False
    )
    return scored_items(results, [task])


class _HarnessModel(HFLM):  # type: ignore[misc]  # lm_eval is untyped
    """lm-eval's Transformers model, with its progress in the log."""

    _forward_passes, _sequences, _reported = 0, 0, 0.0

    def _model_call(self, inps: Any, *arguments: Any, **options: Any) -> Any:
        self._count(len(inps))
        return super()._model_call(inps, *arguments, **options)

    def _model_generate(self, context: Any, *arguments: Any, **options: Any) -> Any:
        self._count(len(context))
        return super()._model_generate(context, *arguments, **options)

    def generate_until(self, requests: Any, disable_tqdm: bool = True) -> Any:  # noqa: ARG002 - a log has no bars
        return super().generate_until(requests, disable_tqdm=True)

    def loglikelihood(self, requests: Any, disable_tqdm: bool = True) -> Any:  # noqa: ARG002
        return super().loglikelihood(requests, disable_tqdm=True)

    def _count(self, sequences: int) -> None:
        now = time.monotonic()
        if now - self._reported >= _PROGRESS_SECONDS:
            self._reported = now
            log.info("evaluating", batches_done=self._forward_passes, sequences_done=self._sequences)
        self._forward_passes, self._sequences = self._forward_passes + 1, self._sequences + sequences
