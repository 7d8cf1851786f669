from __future__ import annotations

import pytest

from llm_pipeline.artifacts.golden import GOLDEN_FILE, GoldenPrompt, golden_from_items, read_golden, write_golden
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.errors import IntegrityError


def item(number, prompt, completion=" yes", generative=True):
    return ScoredItem(
        task="t", item_id=number, fingerprint=str(number), score=1.0, generative=generative, prompt=prompt,
        completion=completion,
    )  # fmt: skip


def test_golden_prompts_survive_a_round_trip(tmp_path):
    golden = [
        GoldenPrompt(prompt='a "quoted"\nline\r\n\u2028 é 日本 😀', completion=" \t7\x00", maximum_tokens=3),
        GoldenPrompt(prompt="plain", completion="", maximum_tokens=1),
    ]
    write_golden(tmp_path, golden)
    assert read_golden(tmp_path) == golden
    last = (tmp_path / GOLDEN_FILE).read_text().splitlines()[-1]
    assert last == '{"prompt": "plain", "completion": "", "max_tokens": 1}', "the server's word for the limit"


def test_a_missing_file_and_a_bad_line_are_integrity_errors(tmp_path):
    with pytest.raises(IntegrityError, match="not a golden prompt"):
        read_golden(tmp_path)
    (tmp_path / GOLDEN_FILE).write_text('{"prompt": "p"}\n')
    with pytest.raises(IntegrityError, match="not a golden prompt"):
        read_golden(tmp_path)


def test_golden_prompts_are_spread_over_all_generative_items():
    items = [item(number, f"p{number}") for number in range(100)]
    golden = golden_from_items(items, 4, maximum_tokens=5)
    assert [prompt.prompt for prompt in golden] == ["p0", "p25", "p50", "p75"]
    assert {prompt.maximum_tokens for prompt in golden} == {5}


def test_only_generative_items_with_an_answer_become_golden_and_each_prompt_once():
    items = [item(1, "a"), item(2, "a"), item(3, "b", generative=False), item(4, "c", completion=""), item(5, "")]
    assert [prompt.prompt for prompt in golden_from_items(items, 10, maximum_tokens=5)] == ["a"]
    assert golden_from_items(items[2:3], 10, maximum_tokens=5) == []


def test_an_answer_is_compared_as_the_evaluation_would_have_taken_it():
    short = golden_from_items(
        [item(1, "p", "9").model_copy(update={"stop": ("\n", "Question:"), "maximum_tokens": 4})], 1, maximum_tokens=32
    )[0]
    assert short.maximum_tokens == 4
    assert short.compared(" 9\nQuestion: and then?") == ("9", "9")
    assert short.compared("97") == ("9", "97")
    assert short.compared("") == ("9", "")


def test_a_completion_longer_than_what_a_server_is_asked_for_is_compared_as_far_as_the_answer_goes():
    asked = item(1, "p", "It is nine because").model_copy(update={"maximum_tokens": 256})
    long = golden_from_items([asked], 1, maximum_tokens=3)[0]
    assert long.compared(" It is nine") == ("It is nine", "It is nine")
    assert long.compared(" It is ten") == ("It is nin", "It is ten")
    assert long.compared("It is", was_cut=False) == ("It is nine because", "It is")
    assert long.compared("") == ("It is nine because", "")
