"""Which files of a model repository may come onto our machines: an allow-list.

A model is safetensors weights, configuration and a tokenizer. Formats that run code when they are loaded (pickles,
Python files) and archives are never fetched; a repository whose only weights are pickles is refused as a whole.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from llm_pipeline.base.errors import IntegrityError, Unsupported

WEIGHTS_SUFFIX = ".safetensors"
_PICKLES = {
    ".bin", ".pt", ".pth", ".ptl", ".ckpt", ".pkl", ".pickle", ".joblib", ".dill", ".npy", ".npz", ".h5", ".hdf5",
    ".keras", ".pdparams", ".mar", ".t7",
}  # fmt: skip
_ARCHIVES = {".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar", ".zst", ".nemo", ".whl", ".egg"}
_CODE = {".py", ".pyc", ".pyd", ".so", ".dll", ".dylib", ".sh", ".bat", ".ps1", ".ipynb", ".js", ".exe"}
_FOR_OTHERS = {
    ".gguf", ".ggml", ".onnx", ".onnx_data", ".msgpack", ".ot", ".tflite", ".mlmodel", ".mlpackage", ".llamafile",
}  # fmt: skip
_ALLOWED_SUFFIXES = {WEIGHTS_SUFFIX, ".json", ".jinja", ".model", ".tiktoken"}
_ALLOWED_NAMES = {"merges.txt", "vocab.txt", "bpe.codes"}
_ALLOWED_DIRECTORIES = {"", "additional_chat_templates"}
_LONGEST_PATH = 1024
_LONGEST_SEGMENT = 255
_NO_NAMES = {"", ".", ".."}
_REPORT_IT = "do not use this repository; report it to the hub"


@dataclass(frozen=True)
class Selection:
    """What of a repository is fetched.

    Attributes:
        fetched: Paths on the allow-list.
        skipped: Files that are harmless and not needed.
        refused: Pickles, code and archives, which could run code or unpack into anything.
    """

    fetched: tuple[str, ...]
    skipped: tuple[str, ...]
    refused: tuple[str, ...]


def unsafe_reason(path: str) -> str | None:
    """Why a path could leave the directory it is written to, or could not be written; None when it is sound."""
    segments = path.split("/")
    if not _NO_NAMES.isdisjoint(segments):
        return "it is absolute, or has an empty or a dot segment"
    if "\\" in path:
        return "it holds a backslash"
    if not path.isprintable():
        return "it holds a character that cannot be printed"
    if len(path) > _LONGEST_PATH or any(len(segment.encode()) > _LONGEST_SEGMENT for segment in segments):
        return f"it is longer than {_LONGEST_PATH} characters, or a segment than {_LONGEST_SEGMENT} bytes"
    return None


def select_files(paths: Iterable[str], *, where: str = "") -> Selection:
    """Choose the files of a model from a repository's listing.

    Raises:
        IntegrityError: The listing is not one of a directory's files, or a file that would be fetched has an unsafe
            name.
        Unsupported: The repository has no safetensors weights, or no config.json.
    """
    listed = list(paths)
    for path in listed:  # no repository lists these: whoever made them up may have made up more
        if not _NO_NAMES.isdisjoint(re.split(r"[/\\]", path)):
            raise _unsafe(path, where)
    if twice := sorted(path for path, times in Counter(listed).items() if times > 1):
        raise IntegrityError(f"the repository lists files twice: {twice[:4]}", where=where, hint=_REPORT_IT)
    harmful = _PICKLES | _CODE | _ARCHIVES
    refused = [path for path in listed if PurePosixPath(path).suffix.lower() in harmful]
    allowed = [path for path in listed if _is_allowed(path)]
    fetched = sorted(set(allowed) - _second_copies(allowed) - _adapters(allowed))
    for path in fetched:  # names of other files do no harm: nothing is written under them
        if unsafe_reason(path):
            raise _unsafe(path, where)
    _require_model(fetched, listed, where)
    others = {*fetched, *refused}
    skipped = [path for path in listed if path not in others]
    return Selection(tuple(fetched), tuple(skipped), tuple(refused))


def _unsafe(path: str, where: str) -> IntegrityError:
    problem = f"the repository lists a file with an unsafe name, {path[:200]!r}: {unsafe_reason(path)}"
    return IntegrityError(problem, where=where, hint=_REPORT_IT)


def _is_allowed(path: str) -> bool:
    """Whether it is weights, configuration or a tokenizer, in a directory that the loaders read."""
    pure = PurePosixPath(path)
    directory = "" if len(pure.parts) == 1 else pure.parent.as_posix()
    return directory in _ALLOWED_DIRECTORIES and (pure.name in _ALLOWED_NAMES or pure.suffix in _ALLOWED_SUFFIXES)


def _second_copies(paths: list[str]) -> set[str]:
    """The same weights in another layout, and their index."""
    copies = {path for path in paths if path.startswith("consolidated") and WEIGHTS_SUFFIX in path}
    has_others = any(path.endswith(WEIGHTS_SUFFIX) for path in paths if path not in copies)
    return copies if has_others else set()


def _adapters(paths: list[str]) -> set[str]:
    """What some loaders would apply to the model without being asked."""
    return {path for path in paths if path.startswith("adapter_")} if "config.json" in paths else set()


def _other_weights(listed: list[str]) -> str:
    """What a repository has in place of safetensors, in words."""
    for suffixes, told in (
        (_PICKLES, "its weights are only in formats that can run code"),
        (_FOR_OTHERS, "its weights are for other programs"),
        ({WEIGHTS_SUFFIX}, "its weights are those of a model in parts, in directories"),
        (_ARCHIVES, "it has archives, which are not unpacked"),
    ):
        if found := sorted(path for path in listed if PurePosixPath(path).suffix.lower() in suffixes):
            return f"{told}: {found[:4]}"
    return "it has no weights"


def _require_model(fetched: list[str], listed: list[str], where: str) -> None:
    if not any(path.endswith(WEIGHTS_SUFFIX) for path in fetched):
        raise Unsupported(
            f"the repository has no safetensors file at its top; {_other_weights(listed)}",
            where=where,
            hint="use a revision with safetensors weights (many repositories have one in refs/pr/*), or convert it "
            "on a machine that may be lost and publish the result",
        )
    if "config.json" not in fetched:
        raise Unsupported(
            "the repository has no config.json",
            where=where,
            hint="adapters and other partial models must be merged into a full model first; of a model in a layout of "
            "its publisher's own (params.json), name the repository that Transformers reads",
        )
