"""How a model ends, samples and is spoken to: the one answer that loaders, scorers, builders and servers take.

    rules = read_model_rules(checkpoint)
    rules.end_tokens                    # (1, 2): each of them ends an answer
    rules.sampling.repetition_penalty   # what generation_config.json asks for; None where it is silent

Four places name tokens that end an answer, and none of them names all in every model: generation_config.json (a list in
many chat models), config.json, the tokenizer's `eos_token`, and the chat template. An answer ends at any of these:

- all of generation_config.json, which is written for nothing else;
- those of config.json, as Transformers and vLLM take them where generation_config.json names none; beside it only those
  that the tokenizer keeps apart from text. Transformers fills the key in by itself, 2 for a Llama, and in some
  fine-tuned models that is a piece of ordinary text;
- the tokenizer's `eos_token`;
- what ends a turn in the default chat template, if it is one of `TURN_ENDS` and a token of its own: nothing but an
  answer's end is meant by these. `<|end|>` is not one of them: gpt-oss ends its thoughts with it, and Phi-3, which
  ends its answers so, lists it.

Pure Python: `plan` asks, too. Served models find the answer in their `engine.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import Field

from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.json_document import parse
from llm_pipeline.base.records import Frozen

CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
TEMPLATE, TEMPLATE_DOCUMENT = "chat_template.jinja", "chat_template.json"
ADDITIONAL_TEMPLATES = "additional_chat_templates"
DEFAULT_TEMPLATE = "default"

TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eot|>", "<end_of_turn>")
"""Of ChatML (Qwen, SmolLM and many others), Llama 3, Llama 4 and Gemma."""

_TEXT_PARTS = ("text_config", "llm_config", "language_config")
_DOCUMENTS = (CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS, TEMPLATE_DOCUMENT)
_NAMED = ("bos_token", "eos_token", "pad_token")
_NAMED_IN_TEMPLATES = (*_NAMED, "unk_token", "sep_token", "cls_token", "mask_token")
_REPLACE = "replace it with the published one, or publish a corrected copy of the model"


class SamplingDefaults(Frozen):
    """What generation_config.json says of sampling; None where it says nothing.

    Attributes:
        do_sample: Whether Transformers samples at all; other servers sample by the other values alone.
        temperature: Divides logits.
        top_p: Probability of the tokens that are drawn from, from 0 to 1.
        top_k: How many they are at most.
        min_p: Least probability of one, as a share of the likeliest one's.
        repetition_penalty: Divides logits of tokens that were there already.
        max_new_tokens: Longest answer.
    """

    do_sample: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None


class ChatFormat(Frozen):
    """How messages become a prompt.

    Attributes:
        template: The default chat template, in Jinja; None where the model has none.
        special_tokens: What it may name, such as `bos_token`.
    """

    template: str | None = None
    special_tokens: dict[str, str] = Field(default={})


class ModelRules(Frozen):
    """How a model ends, samples and is spoken to.

    Attributes:
        end_tokens: Tokens that end an answer, ascending; empty where the model names none.
        pad_token: What fills batches up; the first end token where none is named.
        sampling: Its defaults for sampling. Evaluation is greedy and takes none of them.
        chat: Its chat format.
    """

    end_tokens: tuple[int, ...] = ()
    pad_token: int | None = None
    sampling: SamplingDefaults = SamplingDefaults()
    chat: ChatFormat = ChatFormat()


@dataclass(frozen=True)
class TokenFiles:
    """A model's small files that say how it is tokenized, ends and samples.

    Attributes:
        documents: Content by name; only those that are there.
        templates: Chat templates by name; one without a name is `default`.
        where: The model, for errors.
    """

    documents: Mapping[str, Mapping[str, Any]]
    templates: Mapping[str, str] = field(default_factory=dict)
    where: str = ""

    def get(self, name: str) -> Mapping[str, Any]:
        """A document; empty where there is none."""
        return self.documents.get(name, {})

    @cached_property
    def added_tokens(self) -> Mapping[str, int]:
        """Tokens that are kept apart from text, with their ids."""
        decoder = _mapping(self.get(TOKENIZER_CONFIG).get("added_tokens_decoder"))
        kept = self.get(TOKENIZER).get("added_tokens")
        told: list[tuple[Any, Any]] = [(_mapping(token).get("content"), number) for number, token in decoder.items()]
        told += [(_mapping(token).get("content"), _mapping(token).get("id")) for token in _list(kept)]
        return {token: int(number) for token, number in told if isinstance(token, str) and str(number).isdecimal()}

    @cached_property
    def text_tokens(self) -> Mapping[str, int]:
        """Tokens of ordinary text, with their ids; empty without a tokenizer.json."""
        vocabulary = _mapping(self.get(TOKENIZER).get("model")).get("vocab")
        if isinstance(vocabulary, list):  # of Unigram: [token, score] by id
            return {entry[0]: number for number, entry in enumerate(vocabulary) if isinstance(entry, list) and entry}
        return {token: number for token, number in _mapping(vocabulary).items() if type(number) is int}

    def token_id(self, token: str | None) -> int | None:
        """The id of a token; None if there is none."""
        return None if token is None else self.added_tokens.get(token, self.text_tokens.get(token))

    def special_token(self, key: str) -> str | None:
        """The tokenizer's own token for a purpose, e.g. `eos_token`; None where it names none."""
        named = self.get(TOKENIZER_CONFIG).get(key) or self.get(SPECIAL_TOKENS).get(key)
        named = _mapping(named).get("content", named)
        return named if isinstance(named, str) else None

    @property
    def largest_token(self) -> tuple[str, int]:
        """The token of the largest id that a text, a chat or a batch can hold, with its id.

        Special tokens that nothing names are left out: text-only models keep those of their siblings for images, and
        have no embedding for them.
        """
        used = "".join(self.templates.values())
        named = [token for key in _NAMED if (token := self.special_token(key)) is not None]
        reserved = {
            token["content"]
            for token in _list(self.get(TOKENIZER).get("added_tokens"))
            if token.get("special") and token["content"] not in named and token["content"] not in used
        }
        ids = {**self.text_tokens, **self.added_tokens}
        ids |= {token: len(ids) for token in named if token not in ids}  # Transformers adds what it is told to use
        return max(((token, ids[token]) for token in ids.keys() - reserved), key=lambda one: one[1])

    def token_ids(self, name: str, key: str) -> Iterator[int]:
        """The ids under a key of config.json, its decoder's part included, or of generation_config.json.

        Raises:
            IntegrityError: They are no ids.
        """
        document = self.get(name)
        parts = (_mapping(document.get(part)) for part in _TEXT_PARTS)
        for value in (part.get(key) for part in (document, *parts)):
            ids = value if isinstance(value, list) else [] if value is None else [value]
            if wrong := [one for one in ids if type(one) is not int]:
                problem = f"{key} is {str(value)[:80]}: {str(wrong[0])[:40]!r} is no token's number"
                raise IntegrityError(problem, where=f"{self.where}: {name}", hint=_REPLACE)
            yield from (one for one in ids if one >= 0)  # -1 means none


def read_model_rules(checkpoint: Path) -> ModelRules:
    """How the model in a directory ends and samples.

    Raises:
        IntegrityError: One of its files is malformed; the message names it.
    """
    return rules_of(read_token_files(checkpoint))


def read_token_files(checkpoint: Path) -> TokenFiles:
    """The files of a directory that `rules_of` judges by.

    Raises:
        IntegrityError: One of them is malformed; the message names it.
    """
    paths = {path.relative_to(checkpoint).as_posix(): path for path in checkpoint.rglob("*") if path.is_file()}
    return token_files({name: paths[name].read_bytes() for name in filter(is_token_file, paths)}, where=str(checkpoint))


def is_token_file(path: str) -> bool:
    """Whether rules are read from the file at that path of a model."""
    return path in (*_DOCUMENTS, TEMPLATE) or path.startswith(f"{ADDITIONAL_TEMPLATES}/")


def token_files(contents: Mapping[str, bytes], *, where: str) -> TokenFiles:
    """The files of a model anywhere.

    Args:
        contents: Bytes by path, of each that `is_token_file`.
        where: What it is, for errors.

    Raises:
        IntegrityError: A file is malformed; the message names it.
    """
    documents = {name: _object(contents[name], f"{where}: {name}") for name in _DOCUMENTS if name in contents}
    stated = _mapping(documents.get(TOKENIZER_CONFIG)).get("chat_template")
    stated = stated or _mapping(documents.get(TEMPLATE_DOCUMENT)).get("chat_template")
    templates = dict(_named_templates(stated))
    files = {path: PurePosixPath(path).stem for path in contents if path.startswith(f"{ADDITIONAL_TEMPLATES}/")}
    files |= {TEMPLATE: DEFAULT_TEMPLATE} if TEMPLATE in contents else {}
    if files:  # Transformers reads no others then
        templates = {name: _text(contents[path], f"{where}: {path}") for path, name in files.items()}
    return TokenFiles(documents, templates, where)


def rules_of(files: TokenFiles) -> ModelRules:
    """How a model ends and samples, by its files.

    Raises:
        IntegrityError: One of them says what cannot be; the message names it.
    """
    apart = set(files.added_tokens.values())
    ends = set(files.token_ids(GENERATION, "eos_token_id"))
    ends |= {token for token in files.token_ids(CONFIG, "eos_token_id") if token in apart or not ends}
    template = files.templates.get(DEFAULT_TEMPLATE, "")
    named = (files.special_token("eos_token"), *(token for token in TURN_ENDS if token in template))
    ends |= {number for token in named if (number := files.token_id(token)) is not None}
    pads = (*files.token_ids(GENERATION, "pad_token_id"), *files.token_ids(CONFIG, "pad_token_id"))
    pad = next(iter(pads), files.token_id(files.special_token("pad_token")))
    end_tokens = tuple(sorted(ends))
    return ModelRules(
        end_tokens=end_tokens,
        pad_token=end_tokens[0] if pad is None and end_tokens else pad,
        sampling=_sampling(files),
        chat=ChatFormat(
            template=template or None,
            special_tokens={
                key: token for key in _NAMED_IN_TEMPLATES if (token := files.special_token(key)) is not None
            },
        ),
    )


def _sampling(files: TokenFiles) -> SamplingDefaults:
    generation, told = files.get(GENERATION), dict[str, Any]()
    for name in SamplingDefaults.model_fields:
        if (value := generation.get(name)) is None:
            continue
        switch = name == "do_sample"
        if isinstance(value, bool) is not switch or not isinstance(value, int | float):
            problem = f"{name} is {str(value)[:40]!r}, which is no {'switch' if switch else 'number'}"
            raise IntegrityError(problem, where=f"{files.where}: {GENERATION}", hint=_REPLACE)
        told[name] = int(value) if name in ("top_k", "max_new_tokens") else value
    return SamplingDefaults(**told)


def _named_templates(stated: object) -> Iterator[tuple[str, str]]:
    """Chat templates of tokenizer_config.json: one text, or a list of named ones."""
    if isinstance(stated, str):
        yield DEFAULT_TEMPLATE, stated
    for entry in _list(stated):
        name, template = _mapping(entry).get("name"), _mapping(entry).get("template")
        if isinstance(name, str) and isinstance(template, str):
            yield name, template


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _object(data: bytes, where: str) -> Mapping[str, Any]:
    value = parse(data, where=where, finite=False)
    if not isinstance(value, dict):
        raise IntegrityError("not a JSON object", where=where, hint=_REPLACE)
    return value


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise IntegrityError(f"not UTF-8: {error.reason}", where=where, hint=_REPLACE) from error
