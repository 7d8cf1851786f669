"""Which files of a model repository may come onto our machines: an allow-list, and reasons for everything else.

A model is safetensors weights, configuration and a tokenizer. Formats that run code when they are loaded (pickles,
Python files) and archives are never fetched; a repository whose only weights are pickles is refused as a whole.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
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
    ".gguf",
    ".ggml",
    ".onnx",
    ".onnx_data",
    ".msgpack",
    ".ot",
    ".tflite",
    ".mlmodel",
    ".mlpackage",
    ".llamafile",
}
_ALLOWED_SUFFIXES = {WEIGHTS_SUFFIX, ".json", ".jinja", ".model", ".tiktoken"}
_ALLOWED_NAMES = {"merges.txt", "vocab.txt", "bpe.codes"}
_ALLOWED_DIRECTORIES = {"", "additional_chat_templates"}
_DEVICES = re.compile(
    r"(con|prn|aux|nul|conin\$|conout\$|com[0-9\u00b9\u00b2\u00b3]|lpt[0-9\u00b9\u00b2\u00b3])(\..*)?", re.IGNORECASE
)
"""Names that Windows gives to a device, with any ending (https://learn.microsoft.com/windows/win32/fileio/naming-a-file)."""
_LONGEST_PATH = 1024
_LONGEST_SEGMENT = 255
_NO_NAMES = {"", ".", ".."}
_REPORT_IT = "do not use this repository; report it to the hub"


@dataclass(frozen=True)
class Selection:
    """What of a repository is fetched.

    Attributes:
        fetched: Paths on the allow-list.
        skipped: Reason by path, of files that are harmless and not needed.
        refused: Reason by path, of files that could run code or unpack into anything.
    """

    fetched: tuple[str, ...]
    skipped: Mapping[str, str]
    refused: Mapping[str, str]


def unsafe_reason(path: str) -> str | None:
    """Why a path could leave the directory it is written to, or None when it cannot, on any operating system.

    A file written here may be read elsewhere, so the rules of Windows count, too; and so does the form that a file
    system may fold the name's characters to (full-width dots and slashes become plain ones).
    """
    return _unsafe_as_written(path) or _unsafe_as_written(unicodedata.normalize("NFKC", path))


def _unsafe_as_written(path: str) -> str | None:
    if not path or len(path) > _LONGEST_PATH:
        return f"its length is {len(path)}, not 1 to {_LONGEST_PATH}"
    if any(not character.isprintable() for character in path):
        return "it holds a character that cannot be printed"
    if "\\" in path:
        return "it holds a backslash, a separator on Windows"
    if path.startswith("/"):
        return "it is absolute"
    if ":" in path:
        return "it holds a colon, which names a drive or a second stream of a file on Windows"
    return next((reason for segment in path.split("/") if (reason := _unsafe_segment(segment))), None)


def _unsafe_segment(segment: str) -> str | None:
    if segment in ("", ".", ".."):
        return f"it has the segment {segment!r}"
    if segment[0] in "~-":
        return f"a segment starts with {segment[0]!r}"
    if segment != segment.strip() or segment.endswith("."):
        return "a segment has white space or a dot at its end"
    if _DEVICES.fullmatch(segment):
        return f"{segment!r} is a device on Windows"
    return None if len(segment.encode()) <= _LONGEST_SEGMENT else f"a segment is longer than {_LONGEST_SEGMENT} bytes"


def select_files(paths: Iterable[str], *, where: str = "") -> Selection:
    """Choose the files of a model from a repository's listing.

    Raises:
        IntegrityError: The listing is not one of a directory's files, or a file that would be fetched has an unsafe
            name, or one that a file system may take for another's.
        Unsupported: The repository has no safetensors weights, or no config.json.
    """
    listed = list(paths)
    _require_listing(listed, where)
    refused = {path: reason for path in listed if (reason := _refusal(path))}
    skipped = {path: reason for path in listed if path not in refused and (reason := _omission(path))}
    fetched = [path for path in listed if path not in refused and path not in skipped]
    for copy in _second_copies(fetched):
        skipped[copy] = "a second copy of the weights, in another layout"
        fetched.remove(copy)
    for adapter in [path for path in fetched if path.startswith("adapter_") and "config.json" in fetched]:
        skipped[adapter] = "an adapter, which some loaders would apply to the model without being asked"
        fetched.remove(adapter)
    _require_safe(fetched, where)
    _require_model(fetched, listed, where)
    return Selection(fetched=tuple(sorted(fetched)), skipped=skipped, refused=refused)


def _require_listing(paths: list[str], where: str) -> None:
    """Refuse what no repository lists: whoever made it up may have made up more. Odd names are another matter."""
    for path in paths:
        if not _NO_NAMES.isdisjoint(re.split(r"[/\\]", path)):
            raise _unsafe(path, unsafe_reason(path) or "", where)
    if twice := sorted(path for path, times in Counter(paths).items() if times > 1):
        raise IntegrityError(f"the repository lists files twice: {twice[:4]}", where=where, hint=_REPORT_IT)


def _require_safe(fetched: list[str], where: str) -> None:
    """Names of other files do no harm: nothing is written under them."""
    for path in fetched:
        if reason := unsafe_reason(path):
            raise _unsafe(path, reason, where)
    occurrences = Counter(_folded(path) for path in fetched)
    if twice := sorted(path for path in fetched if occurrences[_folded(path)] > 1):
        raise IntegrityError(
            f"the repository lists files whose names differ only in case or encoding: {twice[:4]}",
            where=where,
            hint=_REPORT_IT,
        )


def _unsafe(path: str, reason: str, where: str) -> IntegrityError:
    return IntegrityError(
        f"the repository lists a file with an unsafe name, {path[:200]!r}: {reason}", where=where, hint=_REPORT_IT
    )


def _folded(path: str) -> str:
    """The one name that a file system may see in many: case and forms of characters folded."""
    return unicodedata.normalize("NFKC", path).casefold()


def _refusal(path: str) -> str | None:
    suffix = PurePosixPath(path).suffix.lower()
    if suffix in _PICKLES:
        return "a pickle, or a format that may hold one, runs code when it is loaded"
    if suffix in _CODE:
        return "code from the hub is not run here"
    return "an archive" if suffix in _ARCHIVES else None


def _omission(path: str) -> str | None:
    pure = PurePosixPath(path)
    directory = "" if len(pure.parts) == 1 else pure.parent.as_posix()
    if directory not in _ALLOWED_DIRECTORIES:
        return "in a directory that the loaders do not read"
    if pure.name in _ALLOWED_NAMES or pure.suffix in _ALLOWED_SUFFIXES:
        return None
    return "not weights, configuration or tokenizer"


def _second_copies(paths: list[str]) -> list[str]:
    weights = [path for path in paths if path.endswith(WEIGHTS_SUFFIX)]
    others = [path for path in weights if not path.startswith("consolidated")]
    copies = [path for path in paths if path.startswith("consolidated") and ".safetensors" in path]  # and their index
    return copies if others else []


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
