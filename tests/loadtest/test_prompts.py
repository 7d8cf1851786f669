import itertools
import json

import numpy as np
import pytest

from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.loadtest.prompts import Composer, RecordedPrompt, open_counter, read_prompts
from llm_pipeline.loadtest.workload import draws

TEXTS = [
    "Summarise the plot of Hamlet in three sentences.",
    "What is the difference between a mutex and a semaphore?",
    "Write a polite email asking my landlord to repair the heating.",
    "Überprüfe, ob 東京の天気は明日も晴れます richtig ist.",
]


def count_tokens(text: str) -> int:
    """A begin token, and one for each three bytes of a word."""
    return 1 + sum(-(-len(word.encode()) // 3) for word in text.split())


@pytest.fixture
def composer():
    return Composer(TEXTS, count_tokens)


def test_composed_texts_have_the_lengths_asked_for(composer):
    tokens = draws(1, "tokens").integers(5, 2005, 500)
    counted = np.array([count_tokens(text) - 1 for text in composer.compose(tokens, draws(1, "texts"))])
    assert np.max(np.abs(counted - tokens)) <= 12
    assert np.mean(counted) == pytest.approx(np.mean(tokens), rel=0.01)


def test_what_words_cost_alone_is_corrected_by_what_they_cost_together():
    def count(text):  # a word that follows itself is half as dear
        words = text.split()
        return sum(2 - (word == before) for word, before in zip(words, ["", *words], strict=False))

    texts = Composer(TEXTS, count).compose(np.full(50, 100), draws(1, "texts"))
    assert np.mean([count(text) for text in texts]) == pytest.approx(100, rel=0.05)


def test_fresh_texts_occur_once_and_begin_alike_for_a_few_words_only(composer):
    known = {"Summarise the plot"}
    texts = composer.compose_fresh(np.full(400, 60), draws(2, "texts"), known)
    assert len(set(texts)) == 400
    assert set(texts) <= known
    alike = max(_common(a, b) for a, b in itertools.pairwise(sorted(texts)))
    assert alike < 110, "characters of some 200"


def _common(one, other):
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_too_few_words_for_so_many_short_texts_are_refused():
    with pytest.raises(ConfigError, match=r"too few different words.*longer ones"):
        Composer(["yes no"], count_tokens).compose_fresh(np.full(50, 1), draws(1, "texts"), set())


def test_prompts_are_read_with_the_lengths_of_their_answers(tmp_path):
    path = tmp_path / "p.jsonl"
    rows = [{"prompt": "a\u2028b", "output_tokens": 7}, {"prompt": "c", "other": 1}, {"prompt": "c"}]
    path.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    assert read_prompts(path) == (RecordedPrompt("a\u2028b", 7), RecordedPrompt("c"))


@pytest.mark.parametrize(
    ("text", "message", "recorded"),
    [
        (b'{"prompt": "x"}\n{"text": "y"}\n', r"p\.jsonl:2: .*'prompt'.*write", False),
        (b'{"prompt": "x"}\n\n{"prompt": " "}\n', r"p\.jsonl:3: .*'prompt'", False),
        (b"[1]\n", r"p\.jsonl:1: not a JSON object", False),
        (b"{\n", r"p\.jsonl:1: not a JSON object", False),
        (b'{"prompt": "a \\ud800"}\n', r"p\.jsonl:1: .*\\ud800 is half of a character", False),
        (b'{"prompt": "x", "output_tokens": "7"}\n', r"p\.jsonl:1: .*'output_tokens'", False),
        (b'{"prompt": "x", "output_tokens": 3}\n{"prompt": "y"}\n', r"p\.jsonl:2: .*'output_tokens'.*recorded", True),
        (b"\n", r"p\.jsonl: the file holds no prompts", False),
        (b"\xff\xfe", r"p\.jsonl:1: not UTF-8", False),
    ],
)
def test_what_is_no_prompt_is_refused_with_its_line(tmp_path, text, message, recorded):
    (tmp_path / "p.jsonl").write_bytes(text)
    with pytest.raises(ConfigError, match=message):
        read_prompts(tmp_path / "p.jsonl", with_output_tokens=recorded)


WORDS = {"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "[UNK]": 2}, "unk_token": "[UNK]"}}
TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None, **WORDS,
}  # fmt: skip
CUT = {"truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}}


@pytest.mark.parametrize(
    ("path", "content", "text", "tokens"),
    [
        ("llm/1/tokenizer/tokenizer.json", TOKENIZER, "a b  unknown a", 4),
        ("tokenizer.json", TOKENIZER | CUT, "a b  unknown a", 4),  # whatever length the training had
        ("none.json", {}, "ü" * 20, 10),  # without one a token is four bytes
    ],
)
def test_the_repositorys_tokenizer_counts(tmp_path, path, content, text, tokens):
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(json.dumps(content))
    assert open_counter(tmp_path)(text) == tokens
    assert open_counter(tmp_path / "none", {"llm/1/checkpoint": tmp_path})(text) == tokens, "in a linked artifact"


def test_a_damaged_tokenizer_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(IntegrityError, match="not a tokenizer"):
        open_counter(tmp_path)
