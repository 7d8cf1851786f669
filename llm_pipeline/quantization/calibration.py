"""Calibration sets: which texts modelopt sees, as exactly reproducible sequences of tokens.

A chat template is a program, so it runs in a child process with limits of time and memory: Jinja's sandbox
keeps it from files and from Python's insides, but not from loops and strings without an end.
"""

from __future__ import annotations

import multiprocessing
import resource
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from llm_pipeline.artifacts.checkpoint_loading import load_tokenizer
from llm_pipeline.base.digest import sha256_bytes, sha256_json
from llm_pipeline.base.errors import ConfigError, Terminal
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.quantization import Calibration, QuantizationRecipe, apportion
from llm_pipeline.quantization.calibration_samples import Sample, read_sources

T = TypeVar("T")


class TookTooMuch(Terminal):
    """The function used more time or memory than it was given."""


class RaisedInChild(Terminal):
    """The function raised an exception; the message has its type and its text."""


def run_in_child(function: Callable[[], T], *, seconds: float, memory_bytes: int) -> T:
    """The result of a function that runs in a fork of this process, whose state it cannot change.

    Args:
        function: What it returns must be picklable.
        seconds: Longest time.
        memory_bytes: Most address space beyond what this process has now.

    Raises:
        TookTooMuch: It ran longer, or needed more.
        RaisedInChild: It raised an exception.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(function, theirs, _limits(seconds, memory_bytes)), daemon=True)
    child.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            raise TookTooMuch(f"not done after {seconds:g} s")
        kind, value = ours.recv()
    except EOFError as error:
        raise TookTooMuch("its process was killed for its time or memory") from error
    finally:
        child.kill()
        child.join()
        ours.close()
    if kind == "memory":
        raise TookTooMuch(f"it needs more than {memory_bytes / 2**20:.0f} MiB")
    if kind == "raised":
        raise RaisedInChild(str(value))
    result: T = value
    return result


def _limits(seconds: float, memory_bytes: int) -> dict[int, int]:
    address_space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return {resource.RLIMIT_AS: address_space + memory_bytes, resource.RLIMIT_CPU: int(seconds) + 1}


def _run(function: Callable[[], Any], answer: Connection, limits: dict[int, int]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the stage's own handler ends leases that are the parent's
    for what, most in limits.items():
        _, hard = resource.getrlimit(what)
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    try:
        outcome: tuple[str, Any] = ("result", function())
    except MemoryError:
        outcome = ("memory", None)
    except Exception as error:  # noqa: BLE001 - it crosses the process: the parent raises it as one of ours
        outcome = ("raised", f"{type(error).__name__}: {error}"[:2000])
    answer.send(outcome)


log = get_logger(__name__)

Tokens = tuple[int, ...]

_SECONDS_TO_RENDER, _SECONDS_A_CHAT = 60.0, 0.1
_RENDERING_BYTES = 2**31


@dataclass(frozen=True)
class CalibrationSet:
    """Token sequences for the calibration forward passes.

    Attributes:
        sequences: Token ids, shortest sequence first.
        digest: SHA-256 over the exact sequences.
        texts: Texts that they are made from: as many as sequences, unless texts are packed.
    """

    sequences: tuple[Tokens, ...]
    digest: str
    texts: int

    @property
    def tokens(self) -> int:
        """Tokens of all sequences together."""
        return sum(map(len, self.sequences))

    def batches(self, size: int) -> tuple[tuple[Tokens, ...], ...]:
        """At most `size` sequences each, all of one length: no padding token ever influences a scale."""
        return tuple(
            tuple(same_length[start : start + size])
            for same_length in (list(group) for _, group in groupby(self.sequences, key=len))
            for start in range(0, len(same_length), size)
        )


def read_calibration(source: Path, recipe: QuantizationRecipe, data: Path | None) -> CalibrationSet | None:
    """The token sequences of a recipe; None for a recipe without calibration.

    `source` has the tokenizer; `data` is as in `read_sources`.

    Raises:
        ConfigError: They are wanted and cannot be made.
    """
    if recipe.calibration is None:
        return None
    if data is None:
        raise ConfigError("the recipe is calibrated, but no calibration data were given", where=recipe.name)
    samples = read_sources(data, recipe.calibration)
    return draw_calibration(samples, recipe.calibration, load_tokenizer(source))


def draw_calibration(sources: Sequence[Sequence[Sample]], calibration: Calibration, tokenizer: Any) -> CalibrationSet:
    """Choose samples, tokenize them, and cut or pack them.

    Args:
        sources: Samples of every source, in the order of `calibration.sources`, from `read_sources`.
        calibration: How many to draw, by which seed, cut at which length.
        tokenizer: The model's tokenizer, of Transformers.

    Raises:
        ConfigError: Too few samples, the model has no chat template, or a text has no tokens.
    """
    chosen = choose_samples(sources, calibration)
    for source, samples, share in zip(calibration.sources, sources, apportion(calibration), strict=True):
        log.info("calibration source", dataset=source.dataset, samples=share, of=len(samples))
    encoded = _encode(chosen, calibration, tokenizer)
    special = frozenset(tokenizer.all_special_ids)
    for sample, tokens in zip(chosen, encoded, strict=True):
        if special.issuperset(tokens):
            raise ConfigError("the text has no tokens", where=sample.where, hint="remove the line")
    cut = _packed(encoded, calibration, tokenizer) if calibration.packing else _cut(encoded, calibration)
    sequences = tuple(sorted(cut, key=len))
    drawn = CalibrationSet(sequences, sha256_json(sequences), len(chosen))
    lengths = f"{len(sequences[0])} to {len(sequences[-1])} tokens"
    log.info("calibration set", sequences=len(sequences), lengths=lengths, tokens=drawn.tokens, digest=drawn.digest)
    return drawn


def choose_samples(sources: Sequence[Sequence[Sample]], calibration: Calibration) -> tuple[Sample, ...]:
    """Draw every source's share, no content twice, in an order that depends on the contents and the seed only.

    Raises:
        ConfigError: A source has fewer different texts than its share, or its share is none.
    """
    taken: dict[str, Sample] = {}
    for source, samples, share in zip(calibration.sources, sources, apportion(calibration), strict=True):
        rest = {sample.content: sample for sample in samples if sample.content not in taken}
        if len(rest) < share:
            elsewhere = " that no earlier source has" if taken else ""
            raise ConfigError(
                f"{share} calibration samples wanted, there are {len(rest)} different ones{elsewhere}",
                where=source.dataset,
                hint="lower `samples`, or give more data",
            )
        first = sorted(rest, key=lambda content: _rank(content, calibration.seed))[:share]
        taken |= {content: rest[content] for content in first}
    return tuple(taken[content] for content in sorted(taken, key=lambda content: _rank(content, calibration.seed)))


def _rank(content: str, seed: int) -> str:
    """A random order that no other sample and no position in a file changes."""
    return sha256_bytes(f"{seed}\0{content}".encode(errors="surrogatepass"))


def _encode(samples: Sequence[Sample], calibration: Calibration, tokenizer: Any) -> list[Tokens]:
    texts = [sample.content for sample in samples]
    if calibration.chat_template:
        if not tokenizer.chat_template:
            raise ConfigError(
                "chat_template: true, but the model has no chat template",
                where="calibration",
                hint="calibrate on texts, or give the model's repository a template",
            )
        texts = _rendered(samples, tokenizer)
    # A chat template writes the special tokens itself.
    encoded = tokenizer(texts, add_special_tokens=not calibration.chat_template, verbose=False)
    return [tuple(ids) for ids in encoded["input_ids"]]


def _rendered(samples: Sequence[Sample], tokenizer: Any) -> list[str]:
    """The chats as texts. The template is a program of the model's repository, so it runs with limits."""
    seconds = _SECONDS_TO_RENDER + _SECONDS_A_CHAT * len(samples)
    try:
        rendered = run_in_child(
            lambda: [_render(sample, tokenizer) for sample in samples], seconds=seconds, memory_bytes=_RENDERING_BYTES
        )
    except TookTooMuch as error:
        raise ConfigError(
            f"the model's chat template does not render {len(samples)} chats within its limits: {error.message}",
            where="calibration",
            hint="calibrate on texts, or look at the template: it may loop without an end",
        ) from error
    for sample, chat in zip(samples, rendered, strict=True):
        if chat.problem:
            raise ConfigError(f"the model's chat template refuses the chat: {chat.problem}", where=sample.where)
    return [chat.text for chat in rendered]


@dataclass(frozen=True)
class _RenderedChat:
    text: str
    problem: str = ""


def _render(sample: Sample, tokenizer: Any) -> _RenderedChat:
    try:
        return _RenderedChat(str(tokenizer.apply_chat_template(sample.messages, tokenize=False)))
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - of a program of the repository: whatever it raises is its refusal
        return _RenderedChat("", str(error)[:500] or type(error).__name__)


def _cut(encoded: Iterable[Tokens], calibration: Calibration) -> list[Tokens]:
    return [tokens[: calibration.maximum_tokens] for tokens in encoded]


def _packed(encoded: Sequence[Tokens], calibration: Calibration, tokenizer: Any) -> list[Tokens]:
    """All texts after each other, each closed by the end token, in pieces of one length; the rest is left out."""
    end, length = tokenizer.eos_token_id, calibration.maximum_tokens
    if end is None:
        raise ConfigError(
            "packing: true, but the model's tokenizer has no end token", where="calibration", hint="set packing: false"
        )
    stream = [token for tokens in encoded for token in (*tokens, *((end,) if tokens[-1] != end else ()))]
    count, rest = divmod(len(stream), length)
    if not count:
        raise ConfigError(
            f"packed, the texts have {len(stream)} tokens: fewer than one sequence of {length}",
            where="calibration",
            hint="raise `samples`, or lower `maximum_tokens`",
        )
    log.info("packed", texts=len(encoded), sequences=count, tokens_each=length, tokens_left_out=rest)
    return [tuple(stream[start : start + length]) for start in range(0, count * length, length)]
