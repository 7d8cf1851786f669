from __future__ import annotations

import re
import unicodedata
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt

from llm_pipeline.base.untrusted_text import QUOTE_MARK, html, markdown, one_line, quoted, several_lines

from .poisoned_text import HIDING, poisoned_strings

ALL = poisoned_strings()

# What Airflow's form (react-markdown with remark-gfm) makes links of, in text outside of code, after escapes are gone:
# https://github.com/syntax-tree/mdast-util-gfm-autolink-literal
LATE_LINK = re.compile(r"(https?://|www(?=\.))([-.\w]+)|(?<![^\s\W])[-.\w+]+@[-\w]+(?:\.[-\w]+)+", re.IGNORECASE)


@pytest.mark.parametrize("start", range(0, len(ALL), 50))
def test_a_line_is_one_printable_line_of_bounded_length(start: int):
    for text in ALL[start : start + 50]:
        line = one_line(text)
        assert len(line.splitlines()) <= 1, text
        assert len(line) < 11 * 4_100
        assert not [c for c in line if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") or c in HIDING], text
        line.encode()
        assert one_line(line, 10**6) == line


def test_what_was_hidden_is_shown_and_what_is_plain_stays():
    assert one_line("a\nb\x1b[31m\u202e\ud800") == "a\\nb\\x1b[31m\\u202e\\ud800"
    assert one_line("naïve 日本語 ✓ a\u00a0b C:\\path") == "naïve 日本語 ✓ a\u00a0b C:\\path"


def test_no_line_of_a_quotation_passes_for_a_line_of_somebody_else():
    text = quoted("first\nsecond\r\n  12.0 s  load_test  done  GO\n\x1b[2K\rthird")
    assert text.split("\n") == ["first", "  | second", "  |   12.0 s  load_test  done  GO", "  | \\x1b[2K\\rthird"]
    assert quoted(text) == text
    for poison in ALL:
        assert all(line.startswith(QUOTE_MARK) for line in quoted(poison).split("\n")[1:])
        assert "\x1b" not in several_lines(poison)


@pytest.mark.parametrize(
    "frame", ["{}", "- **Licence**: {}", "text before\n{}", "| a | b |\n|---|---|\n| {} | end |", "> {}"]
)
def test_markdown_shows_the_text_and_nothing_else(frame: str):
    renderer = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    expected = [token.type for token in _leaves(renderer.parse(frame.format("plain")))]
    for text in (one for one in ALL if one.strip()):
        tokens = _leaves(renderer.parse(frame.format(markdown(text, 500))))
        kinds = [token.type for token in tokens if token.type not in ("text", "code_inline")]
        assert kinds == [kind for kind in expected if kind != "text"], text
        assert not [token for token in tokens if token.type == "text" and LATE_LINK.search(token.content)], text
        shown = "".join(token.content for token in tokens if token.type in ("text", "code_inline"))
        assert one_line(text, 500).strip() in shown, text


def test_html_shows_the_text_and_makes_no_element_or_attribute_of_it():
    for text in ALL:
        parser = Elements()
        parser.feed(f'<p title="{html(text, 500)}">{html(text, 500)}</p>')
        parser.close()
        assert parser.found == [("p", ("title",))], text
        assert parser.text == several_lines(text, 500)


def _leaves(tokens):
    return [leaf for token in tokens for leaf in (token, *(token.children or ()))]


class Elements(HTMLParser):
    """The elements of a page with the names of their attributes, and its text."""

    def __init__(self):
        super().__init__()
        self.found, self.text = [], ""

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, tuple(name for name, _ in attrs)))

    def handle_data(self, data):
        self.text += data

    def handle_comment(self, data):  # noqa: ARG002
        self.found.append(("comment", ()))

    def handle_decl(self, decl):  # noqa: ARG002
        self.found.append(("declaration", ()))
