"""The check of a model's directory right before a loader opens it, whoever made it: download, export, engine, server.

    check_directory(checkpoint)     # raises; then load

It makes sure that what a loader reads is inside the directory: no link leads out of it, no JSON names other files
(`followed_keys`), and the weight index names files beside itself.

Checked bytes are worth nothing if a loader then reads others. The keys by which JSON makes a loader read another file,
a repository of the hub, or code were read in the sources of transformers 5.5.4, and are tried on the installed version
by `tests/quantization/test_confined_loading.py`:

- every key of `tokenizer_config.json`, and of `special_tokens_map.json` in older repositories, is an argument of the
  tokenizer's class, which opens the file that `tokenizer_file`, `vocab_file` and the like name, wherever it is;
- `config.json` can name the weights (`transformers_weights`), another configuration, or a kernel of the hub;
- the descriptions of processors can name a second model.

Keys that only tell where a model came from (`_name_or_path`, `name_or_path`, `special_tokens_map_file`) are in many
good repositories. No loader follows them, and they are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from llm_pipeline.artifacts.model_files import unsafe_reason
from llm_pipeline.base.directory_listing import walk_files
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.json_document import read

_TOKENIZER_FILES = frozenset({"tokenizer_config.json", "special_tokens_map.json"})
_TOKENS_ONLY = frozenset({"tokenizer.json", "vocab.json", "added_tokens.json"})
"""Their keys are tokens, and the parsers of these files follow nothing."""
_ADAPTER_FILE = "adapter_config.json"

_FOLLOWED = {
    "transformers_weights": "the weights are loaded from there",
    "configuration_files": "another configuration is loaded in place of this one",
    "fast_tokenizer_files": "another tokenizer is loaded in place of tokenizer.json",
    "gguf_file": "weights or a tokenizer are loaded from there",
    "audio_tokenizer_name_or_path": "a second model is loaded from there",
    "speculators_config": "a second model is loaded from there",
    "repo_or_path": "data are loaded from there",
    "repo_path": "data are loaded from there",
    "class_info_file": "data are loaded from there",
    "index_path": "data are loaded from there",
    "passages_path": "data are loaded from there",
}
"""In any file, at any depth: what a loader does with the value."""

_KERNELS = frozenset(
    {"attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation"}
)
_TOKENIZER_SOURCES = frozenset(
    {"vocab", "merges", "source_spm", "target_spm", "init_inputs", "mecab_option", "sudachi_resource_dir"}
)
"""Arguments of tokenizers that can name files, beside all whose names end in `_TOKENIZER_ENDINGS`."""
_TOKENIZER_ENDINGS = ("_file", "_files", "_path", "_dir")
_TOKENIZER_HISTORY = frozenset({"special_tokens_map_file", "name_or_path", "_name_or_path"})


def followed_keys(path: str, document: Any) -> tuple[str, ...]:
    """The keys of a JSON document, at that path of its repository, that lead a loader away from the checked files.

    Each with its value, and what the loader does with it.
    """
    name = PurePosixPath(path).name
    if name in _TOKENS_ONLY:
        return ()
    if name == _ADAPTER_FILE:
        return (_told("base_model_name_or_path", document, "an adapter is applied to the model"),)
    effect = _tokenizer_effect if name in _TOKENIZER_FILES else _effect
    return tuple(_search(document, effect))


_Effect = Callable[[str, Any], str | None]


def _search(document: Any, effect: _Effect) -> Iterator[str]:
    waiting: list[tuple[str, Any]] = [("", document)]
    while waiting:
        above, value = waiting.pop()
        if isinstance(value, list):
            waiting += [(above, item) for item in value]
        elif isinstance(value, dict):
            for key, below in value.items():
                place = f"{above}.{key}" if above else key
                if found := effect(key, below):
                    yield _told(place, below, found)
                else:
                    waiting.append((place, below))
            if value.get("use_pretrained_backbone") and value.get("backbone"):
                place = f"{above}.backbone" if above else "backbone"
                yield _told(place, value["backbone"], "a second model is loaded from there")


def _effect(key: str, value: Any) -> str | None:
    if not value:
        return None
    if key in _KERNELS and any("/" in name for name in _texts(value)):
        return "code is loaded from there"
    return _FOLLOWED.get(key)


def _tokenizer_effect(key: str, value: Any) -> str | None:
    if found := _effect(key, value):
        return found
    if key in _TOKENIZER_HISTORY or not any(_texts(value)):
        return None
    if key in _TOKENIZER_SOURCES or key.endswith(_TOKENIZER_ENDINGS):
        return "the tokenizer is loaded from there"
    return None


def _texts(value: Any) -> list[str]:
    """The value, or what a list or mapping holds, where it is text."""
    if isinstance(value, dict):
        return [text for below in value.values() for text in _texts(below)]
    if isinstance(value, list):
        return [text for below in value for text in _texts(below)]
    return [value] if isinstance(value, str) else []


def _told(key: str, value: Any, effect: str) -> str:
    return f"{key[:200]!r} is {value!r:.120}: {effect}"


INDEX_SUFFIX = ".safetensors.index.json"
_LARGE = frozenset({"tokenizer.json", "vocab.json"})
"""Megabytes of tokens; no key of theirs is followed, so they are not parsed at each load."""
_HINT = "remove the key in a copy of the repository and publish that, or choose another model"


def check_directory(directory: Path) -> None:
    """Make sure that loaders find all they read inside a directory.

    Args:
        directory: Of a checkpoint, an engine or a model repository. It may itself be reached through links.

    Raises:
        IntegrityError: A link leads out of it, or a JSON file is malformed or makes loaders read something else; the
            message names the file and the key.
        Transient: A directory in it cannot be listed.
    """
    root = directory.resolve()
    for path in walk_files(root):
        name = path.relative_to(root).as_posix()
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            hint = "publish the file itself"
            raise IntegrityError("a link leads out of the directory", where=f"{directory}/{name}", hint=hint)
        if path.suffix == ".json" and path.name not in _LARGE:
            where = f"{directory}/{name}"
            document = read(path, where=where, finite=False)
            check_document(name, document, where=where)
            if name.endswith(INDEX_SUFFIX):
                shards_of(document if isinstance(document, dict) else {}, where)


def check_document(path: str, document: Any, *, where: str) -> None:
    """Make sure that a JSON file, at that path of a model's repository, makes loaders read nothing else.

    Raises:
        IntegrityError: A key of it does.
    """
    if found := followed_keys(path, document):
        problem = f"it makes loaders read files that were not checked: {'; '.join(found[:4])}"
        raise IntegrityError(problem, where=where, hint=_HINT)


def shards_of(index: Mapping[str, Any], where: str) -> Mapping[str, str]:
    """The weight file of each tensor, by the content of a weight index.

    Raises:
        IntegrityError: It is no weight index, or names a file elsewhere.
    """
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise IntegrityError("not a weight index: weight_map does not name a shard for each tensor", where=where)
    for shard in sorted(set(weight_map.values())):
        if reason := unsafe_reason(shard):
            raise IntegrityError(f"it names a shard outside of the directory, {shard[:200]!r}: {reason}", where=where)
    return weight_map
