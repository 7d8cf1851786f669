"""Tool calls are found at the end of an answer, and nothing else is taken for one."""

from __future__ import annotations

import json

import pytest

from llm_pipeline.endpoint.answers import ToolText

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'


LIST = '[{"name": "weather", "arguments": {"city": "Köln"}}, {"name": "weather", "arguments": {"city": "Bonn"}}]'


def told(text: str, size: int, **asked: object):
    tools, shown = ToolText(**asked), ""
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    for piece in pieces[:-1]:
        seen, calls = tools.take(piece, last=False)
        assert not calls
        shown += seen
    seen, calls = tools.take(pieces[-1], last=True)
    return shown + seen, [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "shown", "cities"),
    [
        (CALL, "", ["Köln"]),
        (f"I ask. {CALL}\n{CALL}", "I ask. ", ["Köln", "Köln"]),
        ("no call, 1 <tool or 2", "no call, 1 <tool or 2", []),
        ("it ends with <tool_ca", "it ends with <tool_ca", []),
        (CALL[:30], CALL[:30], []),
        ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", []),
    ],
)
def test_calls_are_told_apart_from_text_however_it_is_cut(text, shown, cities, size):
    assert told(text, size) == (shown, [("weather", {"city": city}) for city in cities])


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("text", "most", "shown", "cities"),
    [
        (LIST, None, "", ["Köln", "Bonn"]),
        (LIST, 1, "", ["Köln"]),
        (LIST[:60], None, LIST[:60], []),
        ("{}", None, "{}", []),
    ],
)
def test_an_answer_that_must_be_calls_is_a_list_of_them(text, most, shown, cities, size):
    expected = (shown, [("weather", {"city": city}) for city in cities])
    assert told(text, size, is_list=True, most=most) == expected


def test_of_calls_among_text_the_first_is_told_where_one_is_wanted():
    assert told(f"{CALL}\n{CALL}", 7, most=1) == ("", [("weather", {"city": "Köln"})])
