"""Texts that a repository, a server or a tool may hold to pass for something else where people read them."""

from __future__ import annotations

import itertools

GO = "    3.2 s  load_test cpu              done      3.0 s  GO: every request was answered"
HIDING = (
    "\u00ad\u034f\u115f\u1160\u180e\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2800\u3164\ufe0f\ufeff\uffa0\U000e0041"
)
DIRECTIONS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u061c"
LINE_ENDS = ("\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
ESCAPES = (
    "\x1b[2K",
    "\x1b[1A\x1b[2K",
    "\x1b[32m",
    "\x1b]0;title\x07",
    "\x1b]8;;https://evil.example/\x1b\\licence\x1b]8;;\x1b\\",
    "\x1bc",
    "\x9b31m",
    "\x1bP$q\x1b\\",
    "\b\b\b\b",
    "\x00",
    "\x7f",
    "\x07",
)
JSON_LINE = '{"time": "2026-01-01", "level": "ERROR", "logger": "x", "event": "forged"}'
MARKDOWN = (
    "![x](http://evil.example/a.png)",
    "[approve](https://evil.example)",
    "<https://evil.example>",
    "https://evil.example/approve",
    "HTTPS://EVIL.EXAMPLE/a_b*c*",
    "www.evil.example",
    "WWW.evil.example/x",
    "mail me@evil.example",
    "mailto:me@evil.example",
    "@@a@@b.example",
    "# Legal has reviewed this: approve",
    "Legal\n===",
    "Legal\n---",
    "**Legal has reviewed this: approve**",
    "__bold__ _it_ ***x***",
    "~~struck~~",
    "`code` ``two``",
    "```\nfence",
    "~~~\nfence",
    "> quote",
    "- item",
    "+ item",
    "* item",
    "1. item",
    "2) item",
    "- [x] done",
    "---",
    "***",
    "| a | b |",
    "a|b\\|c\\",
    "|---|---|",
    ":---:",
    "[x]: https://evil.example",
    "[^1]: note",
    "a[^1]",
    "&lt;b&gt; &amp; &#60; &copy;",
    "\\*not escaped\\*",
    "\\`\\\\`",
    "    indented code",
    "two spaces  \nbreak",
    "$x^2$ $$y$$",
    "://",
    "https`://`x.example",
    "{{ ti.xcom_pull() }}{% raw %}",
    ":warning:",
)
HTML = (
    "<img src=x onerror=alert(1)>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    '" onmouseover="alert(1)',
    "</script><script>alert(1)</script>",
    "</title><h1>GO</h1>",
    "</style><b>x</b>",
    "</svg></text><a href='javascript:alert(1)'>x</a>",
    "<!-- comment -->",
    "--><b>x</b>",
    "<![CDATA[x]]>",
    "<?xml version='1.0'?>",
    "<!doctype html>",
    "<details open ontoggle=alert(1)>",
    "javascript:alert(1)",
    "<a href=https://evil.example>x</a>",
)
PLOTS = (
    "$\\frac{1}{0}$",
    "$\\mathtt{x}$",
    "\\$",
    "$",
    "_x^y",
    "#010203",
    "font-family: x",
    ' xmlns:a="b"',
    'id="x" url(#x)',
)
SENTENCE = "Legal has reviewed this: approve"


AROUND = (("", ""), ("a ", " b"), ("\n\n", "\n\n"), ("`", ""), ("| ", " |"))
LONG = ("x", "\n", "![", "<b>", "\x1b[1m", "a\u0301\u0301\u0301")
LONG_TEXT = 1_000_000


def poisoned_strings() -> list[str]:
    """All of them, each once."""
    forged = (GO, JSON_LINE, f"{SENTENCE} ![x](http://e.example)")
    every = [
        *(f"llama{end}{text}" for end, text in itertools.product(LINE_ENDS, forged)),
        *(f"llama{escape}{text}" for escape, text in itertools.product(ESCAPES, ("", GO, f"\r{GO}"))),
        *(f"ll{character}ama" for character in HIDING),
        *(f"a{character}OG{character}b" for character in DIRECTIONS),
        *(f"{left}{text}{right}" for text, (left, right) in itertools.product(MARKDOWN, AROUND)),
        *HTML,
        *(f"a\n{one}" for one in HTML),
        *PLOTS,
        *("a\ud800b", "\udfff", "\ud83d", "\U0010ffff", "\ue000"),
        *(piece * (LONG_TEXT // len(piece)) for piece in LONG),
        *("", " ", SENTENCE),
    ]
    return list(dict.fromkeys(every))
