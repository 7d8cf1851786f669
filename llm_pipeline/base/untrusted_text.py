"""Text that we did not write (of a repository, a server or a tool), shown so that it is read as data.

    one_line(card["license_name"])   # a log line, a table's cell, a subject
    quoted(server_log)               # several lines, none of which passes for one of ours
    markdown(summary)                # an approval's form
    html(message)                    # a page; templates with autoescape use `several_lines`

Characters that move the cursor, reverse the reading direction or show nothing are written as their escapes.
"""

from __future__ import annotations

import html as _html
import re

LONGEST_LINE = 4_000
"""Characters of a line; of a longer one the middle is left out."""
LONGEST_TEXT = 20_000
"""Characters of a text of several lines."""
QUOTE_MARK = "  | "
"""What each line after the first begins with, where text of others stands between lines of ours."""

# Letters and marks that show nothing although Unicode calls them printable (its property Default_Ignorable_Code_Point,
# https://www.unicode.org/Public/UCD/latest/ucd/DerivedCoreProperties.txt), and the blank Braille pattern.
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_SPACES = frozenset("\u00a0\u1680\u202f\u205f\u3000").union(map(chr, range(0x2000, 0x200B)))

_MARKDOWN = re.compile(r"(?P<address>(?:://|@|(?<=www)\.)+)|(?P<sign>[\\`*_\[\]<>&|~!#$])", re.IGNORECASE)
_MARKDOWN_START = re.compile(r"^(?:(?=[-+=:])|(\d{1,9})(?=[.)](?:\s|$)))")


def one_line(text: str, limit: int = LONGEST_LINE) -> str:
    """The text on one line, at most about `limit` characters of it; line ends and control characters are escaped."""
    return _visible(_cut(text, limit))


def several_lines(text: str, limit: int = LONGEST_TEXT) -> str:
    """The text with its line ends, and otherwise as `one_line` shows it."""
    lines = _cut(text, limit).replace("\r\n", "\n").split("\n")
    return "\n".join(map(_visible, lines))


def quoted(text: str) -> str:
    """Several lines, each after the first behind `QUOTE_MARK`, so that none can pass for a log line of its own."""
    first, *others = several_lines(text).split("\n")
    marked = (line if line.startswith(QUOTE_MARK) else QUOTE_MARK + line for line in others)
    return "\n".join([first, *marked])


def markdown(text: str, limit: int = LONGEST_LINE) -> str:
    """The text as Markdown (CommonMark and GitHub's additions) that shows it as it is, within a line or a table.

    Renderers make links of bare addresses after they have resolved escapes, so the signs of an address become code.
    """
    escaped = _MARKDOWN.sub(_without_meaning, one_line(text, limit).strip())
    return _MARKDOWN_START.sub(r"\1\\", escaped)


def html(text: str, limit: int = LONGEST_TEXT) -> str:
    """The text for the content or a quoted attribute of an HTML element."""
    return _html.escape(several_lines(text, limit))


def _without_meaning(match: re.Match[str]) -> str:
    return f"`{match[0]}`" if match["address"] else f"\\{match[0]}"


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} ...[{len(text) - 2 * half} characters left out]... {text[-half:]}"


def _visible(line: str) -> str:
    if line.isprintable() and not _BLANK.search(line):
        return line
    return "".join(map(_shown, line))


def _shown(character: str) -> str:
    if character == "\t":
        return "    "
    if character in _SPACES or (character.isprintable() and not _BLANK.match(character)):
        return character
    return character.encode("unicode_escape").decode("ascii")
