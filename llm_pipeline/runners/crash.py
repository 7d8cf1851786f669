"""The error of a stage that ended without saying how."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llm_pipeline.base.errors import ConfigError, StageCrashed

INSTALL_IN_IMAGE = (
    "build an image in which `python -m llm_pipeline --version` answers, or name another image or python: under "
    "environments: in the deployment file"
)

_LAST_LINES = 8
_LONGEST_LINE = 300
_NO_MODULE = re.compile(r"No module named \S+$")
_TOO_OLD = re.compile(r"unknown option:? -P$", re.IGNORECASE)


def crash(how: str, lines: Sequence[str], *, where: str, again: str, install: str) -> StageCrashed | ConfigError:
    """The error of a stage without an outcome: most can be run again, but not one whose interpreter lacks the package.

    Args:
        how: What is known of its end.
        lines: Its log, as far as there is one.
        where: Its job.
        again: What to do about a crash.
        install: What to do about an interpreter that does not run this package.
    """
    if said := _never_began(lines):
        return ConfigError(f"the stage's interpreter does not run this package: {said}", where=where, hint=install)
    return StageCrashed(f"{how}; its last lines:\n{_last(lines)}", where=where, hint=again)


def _never_began(lines: Sequence[str]) -> str:
    """What Python says where it cannot start this package; a stage that has begun reports such errors itself."""
    if not lines or any(line.startswith("{") for line in lines):  # those are of a stage that has begun
        return ""
    first, last = lines[0].strip(), lines[-1].strip()
    if _NO_MODULE.search(last):
        return last
    return f"{first} (it is too old)" if _TOO_OLD.search(first) else ""


def _last(lines: Sequence[str]) -> str:
    """The end of a log, short enough for an error message."""
    return "\n".join(line[:_LONGEST_LINE] for line in lines[-_LAST_LINES:])
