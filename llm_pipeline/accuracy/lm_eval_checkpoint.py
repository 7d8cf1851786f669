"""lm-eval's model over a checkpoint directory, plain or exported by modelopt, in this process and without a network.

lm-eval's `hf` model scores each choice of a question as a sequence of its own. This one computes a context once for
all that follow it (`shared_prefix`), tokenizes in bulk, refuses what would be cut instead of cutting it, and goes on
with half the batch when the device's memory runs out.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import llm_pipeline.accuracy.questions  # noqa: F401  # isort: skip  # it keeps the libraries below offline

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import normalize_gen_kwargs

from llm_pipeline.accuracy.shared_prefix import BatchSize, score_continuations, sequences_that_fit, why_not_shared
from llm_pipeline.artifacts.checkpoint_loading import load_tokenizer
from llm_pipeline.base.errors import ConfigError, IntegrityError, Unsupported
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.progress import Progress
from llm_pipeline.config.release import CheckpointEvaluation
from llm_pipeline.quantization.readback import load_model

log = get_logger(__name__)

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
_SAMPLING_SEED = 1234
_DISTRIBUTIONS = ("lm_eval", "torch", "transformers")

Answers = TypeVar("Answers")
Encoded = tuple[Any, list[int], list[int]]
"""A request as lm-eval hands it on: its texts, its context's tokens and its continuation's."""


class HarnessModel(HFLM):  # type: ignore[misc]  # lm_eval is untyped
    """lm-eval's Transformers model with shared prefixes.

    Args:
        model: A causal language model of Transformers.
        tokenizer: Its tokenizer.
        evaluation: Length and batch size.
        shared_prefix: False scores as lm-eval itself does, to compare with.
    """

    def __init__(
        self, model: Any, tokenizer: Any, evaluation: CheckpointEvaluation, *, shared_prefix: bool = True
    ) -> None:
        logging.getLogger("lm_eval.models.huggingface").addFilter(_is_not_about_the_constructor)
        self.begin_token = _adds_begin_token(tokenizer)
        super().__init__(
            pretrained=model,
            tokenizer=tokenizer,
            batch_size=sequences_that_fit(model, evaluation.maximum_length, evaluation.batch_size),
            max_length=min(evaluation.maximum_length, _positions(model)),
            # The served endpoint tokenizes plain text with the tokenizer's own template; so does this lane.
            add_bos_token=self.begin_token,
            # Half precision would round log-likelihoods to sixteenths of a nat, and make ties out of choices.
            softmax_dtype="float32" if shared_prefix else None,
        )
        self.batch_size_per_gpu: int
        self._likelihood_batch = BatchSize.for_model(model, evaluation.batch_size)
        self.progress = Progress("evaluating", 0, "requests")
        reason = why_not_shared(model, self.max_length) if shared_prefix else "lm-eval's own method is requested"
        self._shared = reason is None
        self.scoring = "shared prefixes" if reason is None else f"a sequence for each choice: {reason}"
        if reason is not None:
            log.info("log-likelihoods are computed by lm-eval itself, a sequence for each choice", reason=reason)

    @property
    def identity(self) -> dict[str, str]:
        """What must be the same of another model's harness for their answers to compare."""
        return {
            "tokenizer": _tokenizer_digest(self.tokenizer),
            "begin token": "added" if self.begin_token else "not added",
            "maximum length": str(self.max_length),
        }

    def halve_batches(self) -> None:
        """Go on with half the batch."""
        self._likelihood_batch = self._likelihood_batch.halved()
        self.batch_size_per_gpu = max(1, self.batch_size_per_gpu // 2)

    def refuse_what_would_be_cut(self, instances: Sequence[Instance]) -> None:
        """Refuse requests that are longer than the model may be given: lm-eval would cut their beginning off.

        Raises:
            ConfigError: One is; the longest is named.
        """
        self._encode([one for one in instances if one.request_type == "loglikelihood"])
        self._check_prompts([one for one in instances if one.request_type == "generate_until"])

    def tokens_of(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of each text, as far as the model may see them."""
        tokens = self._tokens(set(texts))
        return [tokens[text][: self.max_length] for text in texts]

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Log-likelihood of each request's continuation, and whether it is the greedy one."""
        if not self._shared:
            self._encode(requests)
            answers = self._with_memory(lambda: super(HarnessModel, self).loglikelihood(requests, disable_tqdm=True))
            self.progress.advance(len(requests))
            return list(answers)
        return self._loglikelihood_tokens(self._encode(requests), disable_tqdm=disable_tqdm)

    def _loglikelihood_tokens(
        self, requests: Sequence[Encoded], disable_tqdm: bool = True, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        if not self._shared:
            return list(super()._loglikelihood_tokens(requests, disable_tqdm=disable_tqdm, override_bs=override_bs))
        pairs = [(tuple(context), tuple(continuation)) for _, context, continuation in requests]
        scores = score_continuations(self.model, pairs, self._likelihood_batch, self.progress.advance)
        return [(score.log_likelihood, score.greedy) for score in scores]

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = True) -> list[str]:  # noqa: ARG002
        """Text that follows each prompt, up to its stop words; what is drawn is the same for the same requests."""
        self._check_prompts(requests)

        def generate() -> list[str]:
            torch.manual_seed(_SAMPLING_SEED)
            return list(super(HarnessModel, self).generate_until(requests, disable_tqdm=True))

        return self._with_memory(generate)

    def _model_generate(self, context: Any, *arguments: Any, **options: Any) -> Any:
        generated = super()._model_generate(context, *arguments, **options)
        self.progress.advance(len(context))
        return generated

    def _with_memory(self, work: Callable[[], Answers]) -> Answers:
        while True:
            try:
                return work()
            except torch.OutOfMemoryError as error:
                if self.batch_size_per_gpu == 1:
                    raise Unsupported(
                        "a single sequence does not fit into the device's memory",
                        hint="lower evaluation.maximum_length, or use a device with more memory",
                    ) from error
                self.halve_batches()
                torch.cuda.empty_cache()
                log.warning("out of device memory: the batch is halved", sequences=self.batch_size_per_gpu)

    def _encode(self, requests: Sequence[Instance]) -> list[Encoded]:
        """Tokens of contexts and continuations, split as lm-eval splits them, each different text encoded once."""
        texts = [_split(*one.args) for one in requests]
        tokens = self._tokens({context for context, _ in texts} | {context + after for context, after in texts})
        encoded: list[Encoded] = []
        for one, (context, continuation) in zip(requests, texts, strict=True):
            before = tokens[context]
            after = tokens[context + continuation][len(before) :]
            if one.args[0] == "":  # the begin token stands for an empty context
                before, after = [self.prefix_token_id], self.tok_encode(continuation, add_special_tokens=False)
                after = after[1:] if after[:1] == before else after
            self._check_length(one, len(before) + len(after), self.max_length + 1)
            if not after:
                raise IntegrityError("a continuation has no tokens", where=_where(one))
            encoded.append((one.args, before, after))
        return encoded

    def _check_prompts(self, requests: Sequence[Instance]) -> None:
        tokens = self._tokens({one.args[0] for one in requests})
        for one in requests:
            room = self.max_length - normalize_gen_kwargs(one.args[1], self.max_gen_toks)["max_gen_toks"]
            self._check_length(one, len(tokens[one.args[0]]), room)

    def _check_length(self, one: Instance, tokens: int, room: int) -> None:
        if tokens <= room:
            return
        needed = self.max_length + tokens - room
        raise ConfigError(
            f"{tokens} tokens, of which {room} fit: lm-eval would cut off the beginning",
            where=_where(one),
            hint=f"set evaluation.maximum_length to {needed} or more"
            if needed <= _positions(self.model)
            else f"the model takes {_positions(self.model)} tokens: use fewer examples for this task, or leave it out",
        )

    def _tokens(self, texts: Iterable[str]) -> dict[str, list[int]]:
        begin = self.tokenizer.decode(self.prefix_token_id)
        tokens: dict[str, list[int]] = {}
        ordered = sorted(texts)
        for written in (False, True):  # a text that already begins with the begin token gets no second one
            some = [text for text in ordered if text.startswith(begin) is written]
            if some:
                options = {"add_special_tokens": self.begin_token and not written, "return_attention_mask": False}
                tokens |= zip(some, self.tokenizer(some, verbose=False, **options)["input_ids"], strict=True)
        return tokens


def _split(context: str, continuation: str, *_: Any) -> tuple[str, str]:
    """Spaces at the end of a context belong to what follows it: tokenizers join them with the next word."""
    kept = context.rstrip()
    return kept, context[len(kept) :] + continuation


def _where(one: Instance) -> str:
    return f"item {one.doc_id} of task {one.task_name}"


def _positions(model: Any) -> int:
    """Tokens that a model can tell apart by their place, as far as its configuration says."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or sys.maxsize)


def _adds_begin_token(tokenizer: Any) -> bool:
    tokens = tokenizer("a")["input_ids"]
    return tokenizer.bos_token_id is not None and tokens[:1] == [tokenizer.bos_token_id]


def _tokenizer_digest(tokenizer: Any) -> str:
    """Digest of what a tokenizer does, whatever its files look like."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = json.loads(backend.to_str()) if backend is not None else {"vocabulary": tokenizer.get_vocab()}
    kept = {key: value for key, value in content.items() if key not in ("truncation", "padding")}
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return hashlib.sha256(json.dumps([kept, special], sort_keys=True).encode()).hexdigest()


def _is_not_about_the_constructor(record: logging.LogRecord) -> bool:
    """False for the advice lm-eval gives whenever it is handed a model instead of a name."""
    return "`pretrained`" not in record.getMessage()


def use_processors() -> None:
    """With a GPU, tokenize on all processors; without one, leave all but one to the rest of the pipeline."""
    if torch.cuda.is_available():
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
    else:
        torch.set_num_threads(1)


def load_harness_model(
    checkpoint: Path,
    evaluation: CheckpointEvaluation,
    dtype: str,
    *,
    device: str | None = None,
    shared_prefix: bool = True,
) -> HarnessModel:
    """A checkpoint as a model that lm-eval can ask.

    Args:
        checkpoint: A Hugging Face checkpoint, plain or with modelopt's quantization.
        evaluation: Length and batch size.
        dtype: Precision of everything that is not quantized.
        device: Where to run; None takes a GPU if there is one.
        shared_prefix: False scores as lm-eval itself does.

    Raises:
        IntegrityError: The checkpoint is damaged.
        Unsupported: The checkpoint's format cannot be read back.
    """
    if dtype not in _DTYPES:
        raise Unsupported(f"no dtype {dtype!r}: there are {sorted(_DTYPES)}", where=str(checkpoint))
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    started = time.monotonic()
    tokenizer = load_tokenizer(checkpoint)
    model = load_model(checkpoint, _DTYPES[dtype], device)
    harness = HarnessModel(model, tokenizer, evaluation, shared_prefix=shared_prefix)
    seconds = round(time.monotonic() - started, 3)
    log.info("checkpoint loaded", seconds=seconds, device=device, dtype=dtype, scoring=harness.scoring)
    return harness


def harness_versions() -> dict[str, str]:
    """Versions of the harness and of what it runs on."""
    return {name: metadata.version(name) for name in _DISTRIBUTIONS}
