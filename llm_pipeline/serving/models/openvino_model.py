"""The model `llm` of an OpenVINO engine: tokenize, generate in flight, detokenize, in one decoupled model.

This file is copied into a model repository as `llm/1/model.py`, beside `engine/`, `llm_model_base.py` and
`served_model.py`. It runs in Triton's stub process and therefore stands alone: standard library, numpy, openvino,
openvino_genai and triton_python_backend_utils.

One model rather than an ensemble, because cancellation does not pass through an ensemble. One thread owns the engine:
it admits requests, steps the batch and sends what was generated; Triton's thread only checks and queues.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import openvino as ov
import openvino_genai as genai
import triton_python_backend_utils as pb_utils
from openvino import opset13

if TYPE_CHECKING:
    from llm_pipeline.serving.models import llm_model_base as base
    from llm_pipeline.serving.models import served_model
else:
    import llm_model_base as base
    import served_model

IDLE_POLL_SECONDS = 0.5
JSON_BEGINS = '{["-0123456789tfn'
SCHEMA_SECONDS = 10.0
"""How long a request with a JSON schema waits for those before it; some compile for minutes."""
SCORED_AT_ONCE = 64
"""Tokens; the batch generates on between these."""


@dataclass(eq=False, kw_only=True)
class Live(base.Live):
    """One request from its acceptance to its last response.

    Attributes:
        is_scored: Its likelihoods are of the `Scorer`, after it was generated, and its answer has one piece.
    """

    generation: Any
    is_scored: bool
    handle: Any = None

    def read(self, token_bytes: Callable[[int], bytes]) -> int:
        """Collect what the engine generated, and whether the request ended; returns the number of new tokens."""
        new: list[int] = []
        while self.handle.can_read():
            for output in self.handle.read().values():
                new += output.generated_ids
                if self.reply.logprobs is not None and not self.is_scored:
                    numbers = zip(output.generated_ids, output.generated_log_probs, strict=True)
                    self.reply.tell(base.likelihood(token_bytes(token), number) for token, number in numbers)
                if output.finish_reason != genai.GenerationFinishReason.NONE:
                    self.finish_reason = output.finish_reason.name.lower()
        self.window.tokens += new
        self.unread_tokens += len(new)
        status = self.handle.get_status()
        if status == genai.GenerationStatus.IGNORED:
            raise base.unavailable("the request does not fit into the KV cache")
        if status != genai.GenerationStatus.RUNNING and not self.finish_reason:
            self.finish_reason = "cancelled"
        return len(new)


class Score(NamedTuple):
    """A token of a text with its logprob, None for the first one, and the likeliest tokens at its place with theirs."""

    token: int
    logprob: float | None
    top: list[tuple[int, float]]


class Scorer:
    """The model without the batch: how likely each token of a text is, and which are the likeliest at its place.

    OpenVINO GenAI (2026.4) tells the first of the tokens that it chose only. Asked for those of a prompt, it reads
    other requests' logits as soon as any generates beside it.
    """

    def __init__(self, engine: Path, properties: dict[str, str]) -> None:
        model = ov.Core().compile_model(engine / "openvino_model.xml", "CPU", properties)
        self._names = {name for port in model.inputs for name in port.names}
        self._request = model.create_infer_request()

    def scores(self, tokens: list[int], first: int, most: int) -> Iterator[list[Score]]:
        """The tokens from `first` on, some at a time, each with the `most` likeliest at its place."""
        if not first:
            yield [Score(tokens[0], None, [])]
        self._request.reset_state()
        for start in range(0, len(tokens) - 1, SCORED_AT_ONCE):
            end = min(start + SCORED_AT_ONCE, len(tokens) - 1)
            inputs = {
                "input_ids": np.array([tokens[start:end]], np.int64),
                "attention_mask": np.ones((1, end), np.int64),
                "position_ids": np.arange(start, end, dtype=np.int64)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
            self._request.infer({name: value for name, value in inputs.items() if name in self._names})
            skipped = max(0, first - 1 - start)
            logits = self._request.get_tensor("logits").data[0, skipped:].astype(np.float32)
            if len(logits):
                yield _scores(logits, tokens[start + skipped + 1 : end + 1], most)


def _scores(logits: Any, following: list[int], most: int) -> list[Score]:
    """The tokens that follow, by logits [tokens, vocabulary]."""
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    likeliest = np.argpartition(logits, -most, axis=1)[:, -most:] if most else np.empty((len(logits), 0), np.int64)
    return [
        Score(token, float(row[token]), sorted(((int(one), float(row[one])) for one in top), key=lambda pair: -pair[1]))
        for row, token, top in zip(logits, following, likeliest, strict=True)
    ]


class SchemaCheck:
    """Compiles JSON schemas as the batch does: one that does not compile there ends all of its requests."""

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        """A pipeline of a model that knows nothing, with the same tokenizer, which keeps what was compiled."""
        inputs = {
            name: opset13.parameter([-1, -1], ov.Type.i64, name=name)
            for name in ("input_ids", "attention_mask", "position_ids")
        }
        inputs["beam_idx"] = opset13.parameter([-1], ov.Type.i32, name="beam_idx")
        for name, node in inputs.items():
            node.output(0).tensor.set_names({name})
        size = opset13.constant(np.array([vocabulary], np.int64))
        shape = opset13.concat([opset13.shape_of(inputs["input_ids"]), size], 0)
        logits = opset13.broadcast(opset13.constant(np.float32(0)), shape)
        logits.output(0).tensor.set_names({"logits"})
        model = ov.Model([opset13.result(logits)], list(inputs.values()), "nothing")
        with tempfile.TemporaryDirectory() as directory:
            ov.save_model(model, Path(directory) / "openvino_model.xml")
            self._pipeline = genai.LLMPipeline(directory, tokenizer, "CPU", ATTENTION_BACKEND="SDPA")
        self._tokenizer = tokenizer

    def require(self, generation: Any) -> None:
        """Raises `RefusedError` for a schema that does not compile, or that no token begins to follow.

        Where all tokens are forbidden, the first one of the vocabulary is made.
        """
        trial = genai.GenerationConfig()
        trial.max_new_tokens, trial.apply_chat_template = 1, False
        trial.structured_output_config = generation.structured_output_config
        try:
            made = self._pipeline.generate(ov.Tensor(np.zeros((1, 1), np.int64)), trial)
        except RuntimeError as error:
            raise base.invalid(f"json_schema: {str(error).strip().splitlines()[-1].rpartition(': ')[2]}") from error
        text = self._tokenizer.decode(made.tokens[0])
        if not text or text.strip()[:1] not in JSON_BEGINS:
            raise base.invalid("json_schema: no token of this model's tokenizer begins an answer that follows it")


class TritonPythonModel(served_model.ServedModel):
    """The entry points that Triton calls, and the thread that owns the engine."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the engine and start its thread; an exception here makes the model unavailable."""
        self.set_up(args)
        self._engine = Path(args["model_repository"]) / args["model_version"] / "engine"
        self._metrics.show_kv_cache(args["model_instance_name"])
        self._condition = threading.Condition()
        self._inbox: deque[Live] = deque()
        self._live: list[Live] = []
        self._scoring: deque[tuple[Live, Iterator[list[Score]]]] = deque()
        self._numbers, self._stopping = 0, False
        self._pipeline: Any = None
        self._scorer: Scorer | None = None
        self._schemas: SchemaCheck | None = None
        self._compiling = threading.Lock()
        started = time.monotonic()
        self._load_engine()
        self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        self._thread.start()
        seconds = time.monotonic() - started
        pb_utils.Logger.log_info(f"llm: engine loaded in {seconds:.2f} s, {self._about}")

    def execute(self, requests: list[Any]) -> None:
        """Check and queue requests; every answer goes through its response sender."""
        self.admit(requests, self._accept, self._begin)

    def finalize(self) -> None:
        """Stop the thread; requests that are still live end as cancelled."""
        with self._condition:
            self._stopping = True
            self.close()
            self._condition.notify()
        self._thread.join(base.SHUTDOWN_SECONDS)
        self._pipeline = self._scorer = self._schemas = None

    # Triton's thread

    def _accept(self, request: Any, sender: Any) -> Live:
        if self._pipeline is None and not self._stopping:
            raise base.unavailable("the engine failed and could not be loaded again")
        asked, prompt = self.read(request, self._encode, self._tokenizer.decode, self._vocabulary)
        is_scored = asked.logprobs is not None and (asked.echo or asked.logprobs > 0)
        if is_scored and self._scorer is None:
            self._scorer = Scorer(self._engine, self._properties)
        return Live(
            reply=self.reply_to(replace(asked, stream=asked.stream and not is_scored), sender, len(prompt)),
            asked=asked,
            prompt=prompt,
            generation=self._generation(asked),
            not_before=time.monotonic() + self._delay_seconds,
            is_scored=is_scored,
        )

    def _encode(self, text: str, *, special: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=special).input_ids.data[0].tolist())

    def _generation(self, asked: base.Inputs) -> Any:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.apply_chat_template = asked.maximum_tokens, False
        config.stop_token_ids, config.ignore_eos = self._end_tokens, asked.ignore_eos
        config.logprobs = int(asked.logprobs is not None)
        for name in asked.sampling.keys() - {"temperature", "seed"}:
            setattr(config, name, asked.sampling[name])
        if asked.temperature > 0:
            config.do_sample, config.temperature = True, asked.temperature
            config.rng_seed = asked.sampling.get("seed", self._seen) % 2**32  # all that its generator takes
        if asked.json_schema:
            config.structured_output_config = genai.StructuredOutputConfig(json_schema=asked.json_schema)
        return config

    def _begin(self, live: Live) -> None:
        if live.asked.json_schema:
            threading.Thread(target=self._compile, args=(live,), daemon=True).start()
        else:
            self._queue(live)

    def _compile(self, live: Live) -> None:
        """Queue a request once its schema compiles: in a thread of its own, so that nobody else waits for that."""
        if not self._compiling.acquire(timeout=SCHEMA_SECONDS):
            self.end(live, base.unavailable("the json_schema of another request is still being compiled"))
            return
        try:
            self._schemas = self._schemas or SchemaCheck(self._tokenizer, self._vocabulary)
            self._schemas.require(live.generation)
        except base.RefusedError as refusal:
            self.end(live, refusal)
        except Exception as error:  # noqa: BLE001 - its client waits for an answer
            self.end(live, base.failure(f"json_schema: {error}"))
        else:
            self._queue(live)
        finally:
            self._compiling.release()

    def _queue(self, live: Live) -> None:
        with self._condition:
            self._inbox.append(live)
            self._condition.notify()

    # The engine's thread

    def _load_engine(self) -> None:
        description = json.loads((self._engine / "engine.json").read_text(encoding="utf-8"))
        self._properties = description["runtime_properties"]
        self._end_tokens = set(description["rules"]["end_tokens"])
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_seqs = self._limits.maximum_sequences
        scheduler.max_num_batched_tokens = self._limits.maximum_batched_tokens
        scheduler.num_kv_blocks = self._limits.kv_cache_blocks
        scheduler.dynamic_split_fuse, scheduler.enable_prefix_caching = True, False
        self._pipeline = genai.ContinuousBatchingPipeline(self._engine, scheduler, "CPU", self._properties)
        self._tokenizer = self._pipeline.get_tokenizer()
        self._spelt = {token: spelt for spelt, token in self._tokenizer.get_vocab().items()}
        self._vocabulary = max(self._spelt) + 1

    def _token_bytes(self, token: int) -> bytes:
        return base.token_bytes(self._spelt.get(token, b"").decode(errors="surrogateescape"), byte_level=False)

    def _serve(self) -> None:
        while self._wait_for_work():
            try:
                self._step()
            except Exception as error:  # noqa: BLE001 - whatever the engine throws must not end the thread
                pb_utils.Logger.log_error(f"llm: the engine failed: {error!r}; loading it again")
                self._end_all(base.failure(f"the engine failed: {error}"))
                self._reload()
        self._end_all(None)

    def _wait_for_work(self) -> bool:
        """Take new requests, waiting for them when there is nothing else to do; False when the model is unloaded."""
        with self._condition:
            if not self._live and not self._inbox and not self._stopping:
                self._condition.wait(IDLE_POLL_SECONDS)
            elif self._live and not self._scoring and not any(live.handle for live in self._live):
                self._condition.wait(base.CANCELLATION_POLL_SECONDS / 4)  # all of them are held back by a drill
            self._live += self._inbox
            self._inbox.clear()
            return not self._stopping

    def _step(self) -> None:
        now = time.monotonic()
        for live in list(self._live):
            if live.reply.client_left():
                self.end(live)
            elif live.handle is None and not live.finish_reason and live.not_before <= now:
                self._start(live)
        if self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            self._deliver()
            usage = self._pipeline.get_metrics().cache_usage / 100.0  # a percentage of the step, before it frees
            self._metrics.engine_load(usage, last=not self._live)
        if self._scoring:
            self._score()

    def _start(self, live: Live) -> None:
        if live.asked.maximum_tokens:
            self._numbers += 1
            ids = ov.Tensor(np.array([live.prompt], np.int64))
            live.handle = self._pipeline.add_request(self._numbers, ids, live.generation)
        else:  # only the prompt is asked for
            self._complete(live, "length")

    def _deliver(self) -> None:
        """Take what this step generated; the texts of all requests are decoded in one call."""
        ready, generated = [], 0
        for live in [live for live in self._live if live.handle]:
            try:
                generated += (new := live.read(self._token_bytes))
            except base.RefusedError as refusal:
                self.end(live, refusal)
                continue
            if live.finish_reason or (new and live.shown_early):
                ready.append(live)
        self._metrics.generated(generated)
        windows = [window for live in ready for window in live.window.windows()]
        texts = iter(self._tokenizer.decode(windows) if windows else ())
        for live in ready:
            if reason := live.advance(next(texts), next(texts)):
                self._complete(live, reason)
            else:
                live.reply.flush("")

    def _complete(self, live: Live, reason: str) -> None:
        """Send the end of an answer, or have it scored first."""
        if self._scorer and live.is_scored:
            if live.handle:
                live.handle.stop()
            live.handle, live.finish_reason = None, reason
            first = 0 if live.asked.echo else len(live.prompt)
            scores = self._scorer.scores(live.prompt + live.window.tokens, first, live.asked.logprobs or 0)
            self._scoring.append((live, scores))
        else:
            self.forget(live, "completed")
            live.reply.flush(reason)

    def _score(self) -> None:
        """Score some tokens of the request that has waited longest."""
        live, scores = self._scoring[0]
        if live in self._live and (some := next(scores, None)):
            spelt = self._token_bytes
            live.reply.tell(
                base.likelihood(spelt(one.token), one.logprob, [(spelt(token), number) for token, number in one.top])
                for one in some
            )
            return
        self._scoring.popleft()
        if live in self._live:
            self.forget(live, "completed")
            live.reply.flush(live.finish_reason)

    def forget(self, live: Live, outcome: str) -> None:
        """Free all that it holds, its part of the batch and of the KV cache too."""
        if live.handle is not None:
            live.handle.stop()
        if live in self._live:
            self._live.remove(live)
        super().forget(live, outcome)

    def _end_all(self, refusal: base.RefusedError | None) -> None:
        for live in list(self._live):
            self.end(live, refusal)

    def _reload(self) -> None:
        self._pipeline = None  # the old engine's memory goes before the new one's comes
        try:
            self._load_engine()
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            pb_utils.Logger.log_error(f"llm: the engine does not load again: {error!r}")
