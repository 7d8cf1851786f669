"""Calibration sets: which texts modelopt sees, as exactly reproducible sequences of tokens.

    data = read_calibration(checkpoint, recipe, texts)

Which texts they are follows from the files and the seed alone; tokens need Transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from llm_pipeline.artifacts.checkpoint_loading import load_tokenizer
from llm_pipeline.base.digest import canonical_json, sha256_bytes, sha256_json
from llm_pipeline.base.errors import ConfigError, unless_io
from llm_pipeline.base.json_document import read_lines, require_whole
from llm_pipeline.base.logging import get_logger
from llm_pipeline.catalog.named_sets import named_set
from llm_pipeline.config.quantization import NAMED_SET, Calibration, QuantizationRecipe, apportion

log = get_logger(__name__)

Tokens = tuple[int, ...]
_SUFFIXES = (".jsonl", ".parquet")


@dataclass(frozen=True)
class Sample:
    """One text, or one chat.

    Attributes:
        content: The text, or the chat's messages as canonical JSON.
        where: File and line that it stands in.
    """

    content: str
    where: str


def read_sources(path: Path, calibration: Calibration) -> tuple[tuple[Sample, ...], ...]:
    """The samples of every source, in the order of the sources.

    Args:
        path: Directory of a calibration set as the resolve stage publishes it; or a file, for a single source.
        calibration: What was asked for.

    Raises:
        ConfigError: A file is missing or unreadable, or a line of it is no sample.
    """
    files = [path] if path.is_file() else [file for file in path.glob("*") if file.suffix in _SUFFIXES]
    if len(files) > 1:  # `0-first.jsonl`, `1-second.jsonl`
        files.sort(key=lambda file: int("0" + file.name.partition("-")[0]))
    if len(files) != len(calibration.sources):
        found = f"{len(files)} jsonl or parquet files for {len(calibration.sources)} sources"
        raise ConfigError(found, where=str(path), hint="resolve the release again")
    return tuple(
        read_source(file, source, chat=calibration.chat_template)
        for file, source in zip(files, calibration.sources, strict=True)
    )


def read_source(path: Path, source: str, *, chat: bool) -> tuple[Sample, ...]:
    """All samples of one source.

    A line that is no sample is an error in a file of one's own; in a named set, which nobody can correct, rows without
    text are passed over.

    Raises:
        ConfigError: The file is unreadable, or a line of it is no sample.
    """
    named = named_set(source, chat=chat) if source.startswith(NAMED_SET) else None
    field = named.field if named else "messages" if chat else "text"
    rows = _parquet_rows(path, [named.field] if named else None) if path.suffix == ".parquet" else read_lines(path)
    return tuple(_sample(row, field, where) for row, where in rows if not (named and _is_blank(row.get(field))))


def _parquet_rows(path: Path, columns: list[str] | None) -> Iterator[tuple[dict[str, Any], str]]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        number = 0
        for batch in ParquetFile(path).iter_batches(columns=columns):
            for row in batch.to_pylist():
                number += 1
                yield row, f"{path} row {number}"
    except (OSError, ArrowException) as error:
        raise unless_io(error, ConfigError(f"cannot be read as parquet: {error}", where=str(path))) from error


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip()) or value == []


def _sample(row: dict[str, Any], field: str, where: str) -> Sample:
    value = row.get(field)
    if isinstance(value, list):
        return _chat(value, where)
    if isinstance(value, str) and value.strip() and field != "messages":
        require_whole(value, where=where)
        return Sample(value, where)
    wrong = "is empty" if _is_blank(value) and field in row else "is not text" if field in row else "is missing"
    hint = f'write {{"{field}": "..."}}'
    if field == "text" and "messages" in row:
        hint = "set calibration.chat_template: true for chats"
    elif field == "messages":
        hint = 'write {"messages": [{"role": "user", "content": "..."}]}, or set calibration.chat_template: false'
    raise ConfigError(f"{field!r} {wrong}", where=where, hint=hint)


def _chat(messages: list[Any], where: str) -> Sample:
    for message in messages:
        if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
            raise ConfigError("a message without a role", where=where)
        if not isinstance(message.get("content"), str):
            raise ConfigError("a message without content", where=where)
        require_whole(message["role"] + message["content"], where=where)
    if all(_is_blank(message["content"]) for message in messages):
        raise ConfigError("'messages' is empty", where=where)
    return Sample(canonical_json(messages).decode(), where)


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
        log.info("calibration source", dataset=source, samples=share, of=len(samples))
    encoded = _encode(chosen, calibration, tokenizer)
    special = frozenset(tokenizer.all_special_ids)
    for sample, tokens in zip(chosen, encoded, strict=True):
        if special.issuperset(tokens):
            raise ConfigError("the text has no tokens", where=sample.where, hint="remove the line")
    cut = [tokens[: calibration.maximum_tokens] for tokens in encoded]
    if calibration.packing:
        cut = _packed(encoded, calibration, tokenizer)
    sequences = tuple(sorted(cut, key=len))
    drawn = CalibrationSet(sequences, sha256_json(sequences), len(chosen))
    lengths = f"{len(sequences[0])} to {len(sequences[-1])} tokens"
    log.info("calibration set", sequences=len(sequences), lengths=lengths, tokens=drawn.tokens, digest=drawn.digest)
    return drawn


def choose_samples(sources: Sequence[Sequence[Sample]], calibration: Calibration) -> tuple[Sample, ...]:
    """Draw every source's share, no content twice, in an order that depends on the contents and the seed only.

    Raises:
        ConfigError: A source has fewer different texts than its share.
    """
    taken: dict[str, Sample] = {}
    for source, samples, share in zip(calibration.sources, sources, apportion(calibration), strict=True):
        rest = {sample.content: sample for sample in samples if sample.content not in taken}
        if len(rest) < share:
            elsewhere = " that no earlier source has" if taken else ""
            problem = f"{share} calibration samples wanted, there are {len(rest)} different ones{elsewhere}"
            raise ConfigError(problem, where=source, hint="lower `samples`, or give more data")
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
            hint = "calibrate on texts, or give the model's repository a template"
            raise ConfigError("chat_template: true, but the model has no chat template", where="calibration", hint=hint)
        texts = [_rendered(sample, tokenizer) for sample in samples]
    # A chat template writes the special tokens itself.
    encoded = tokenizer(texts, add_special_tokens=not calibration.chat_template, verbose=False)
    return [tuple(ids) for ids in encoded["input_ids"]]


def _rendered(sample: Sample, tokenizer: Any) -> str:
    try:
        return str(tokenizer.apply_chat_template(json.loads(sample.content), tokenize=False))
    except Exception as error:  # of a program of the repository: whatever it raises is its refusal
        problem = str(error)[:500] or type(error).__name__
        raise ConfigError(f"the model's chat template refuses the chat: {problem}", where=sample.where) from error


def _packed(encoded: Sequence[Tokens], calibration: Calibration, tokenizer: Any) -> list[Tokens]:
    """All texts after each other, each closed by the end token, in pieces of one length; the rest is left out."""
    end, length = tokenizer.eos_token_id, calibration.maximum_tokens
    if end is None:
        hint = "set packing: false"
        raise ConfigError("packing: true, but the model's tokenizer has no end token", where="calibration", hint=hint)
    stream = [token for tokens in encoded for token in (*tokens, *((end,) if tokens[-1] != end else ()))]
    count, rest = divmod(len(stream), length)
    if not count:
        problem = f"packed, the texts have {len(stream)} tokens: fewer than one sequence of {length}"
        raise ConfigError(problem, where="calibration", hint="raise `samples`, or lower `maximum_tokens`")
    log.info("packed", texts=len(encoded), sequences=count, tokens_each=length, tokens_left_out=rest)
    return [tuple(stream[start : start + length]) for start in range(0, count * length, length)]
