from __future__ import annotations

import json
import re

import pytest

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.quantization import Calibration, apportion
from llm_pipeline.quantization.calibration import Sample, choose_samples, draw_calibration, read_sources

START, END = 1, 2


class LetterTokenizer:
    """A token a letter behind a start token, with what is used of a tokenizer of transformers."""

    all_special_ids = (START, END)

    def __init__(self, *, chat_template=None, eos_token_id=END):
        self.chat_template = chat_template
        self.eos_token_id = eos_token_id

    def __call__(self, texts, *, add_special_tokens=True, verbose):  # noqa: ARG002
        start = [START] if add_special_tokens else []
        return {"input_ids": [start + [ord(letter) for letter in text if letter != "~"] for text in texts]}

    def apply_chat_template(self, messages, *, tokenize):
        assert not tokenize
        return "".join(f"<{message['role']}>{message['content']}" for message in messages)


TEXTS = [f"text {'x' * (index % 7)} {index}" for index in range(40)]


def settings(**changes):
    return Calibration(**{"sources": ["d.jsonl"], "samples": 16, "maximum_tokens": 12, **changes})


def samples(texts):
    return [Sample(text, f"d.jsonl:{number}") for number, text in enumerate(texts, start=1)]


def drawn(texts=TEXTS, tokenizer=None, **changes):
    return draw_calibration([samples(texts)], settings(**changes), tokenizer or LetterTokenizer())


def text_of(tokens):
    return "".join(chr(token) for token in tokens if token not in (START, END))


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_same_seed_draws_the_same_tokens_however_the_file_is_ordered():
    assert drawn(seed=1) == drawn(TEXTS[::-1], seed=1)


@pytest.mark.parametrize("change", [{"seed": 2}, {"maximum_tokens": 11}, {"samples": 15}, {"packing": True}])
def test_the_digest_changes_with_what_the_model_sees(change):
    assert drawn(seed=1).digest != drawn(**{"seed": 1, **change}).digest


def test_the_digest_changes_with_a_letter_of_the_data():
    every = {"samples": 40}
    assert drawn([*TEXTS[:-1], TEXTS[-1] + "!"], **every).digest != drawn(**every).digest


def test_every_drawn_text_is_in_one_batch_which_needs_no_padding_and_is_no_part_of_the_digest():
    assert drawn(batch_size=1) == drawn(batch_size=4)
    for batch in drawn().batches(4):
        assert len({len(tokens) for tokens in batch}) == 1
        assert len(batch) <= 4
        assert len(batch[0]) <= 12
    every = drawn()
    batched = [tokens for batch in every.batches(3) for tokens in batch]
    assert sorted(batched) == sorted(every.sequences)
    assert len(batched) == every.texts == 16


def test_too_few_different_texts_are_refused():
    with pytest.raises(ConfigError, match="41 calibration samples wanted, there are 40 different ones"):
        drawn([*TEXTS, *TEXTS], samples=41)


def test_a_text_of_two_sources_is_drawn_once():
    mixture = settings(sources=["a.jsonl", "b.jsonl"], samples=40)
    chosen = choose_samples([samples(TEXTS[:20]), samples(TEXTS)], mixture)
    assert sorted(sample.content for sample in chosen) == sorted(TEXTS)
    with pytest.raises(ConfigError, match=r"20 .*wanted, there are 19 different ones that no earlier source") as error:
        choose_samples([samples(TEXTS[:21]), samples(TEXTS)], settings(sources=mixture.sources, samples=41))
    assert error.value.where == "b.jsonl"


@pytest.mark.parametrize(("sources", "samples", "shares"), [(1, 7, (7,)), (3, 9, (3, 3, 3)), (3, 11, (4, 4, 3))])
def test_each_source_of_a_mixture_gives_as_many(sources: int, samples: int, shares: tuple[int, ...]):
    assert apportion(settings(sources=[f"{number}.jsonl" for number in range(sources)], samples=samples)) == shares


def test_packed_sequences_have_one_length_an_end_token_between_texts_and_lose_only_the_rest():
    packed = drawn(packing=True, samples=40, maximum_tokens=32)
    assert {len(tokens) for tokens in packed.sequences} == {32}
    assert len(packed.sequences) == sum(len(text) + 2 for text in TEXTS) // 32
    assert packed.texts == 40
    joined = [token for sequence in packed.sequences for token in sequence]
    starts = [index for index, token in enumerate(joined) if token == START]
    assert all(joined[index - 1] == END for index in starts if index % 32)


def test_packing_needs_an_end_token_and_enough_text():
    with pytest.raises(ConfigError, match="no end token"):
        drawn(packing=True, tokenizer=LetterTokenizer(eos_token_id=None))
    with pytest.raises(ConfigError, match=r"the texts have \d+ tokens: fewer than one sequence of 4096"):
        drawn(packing=True, maximum_tokens=4096)


def test_a_text_without_tokens_is_named():
    with pytest.raises(ConfigError, match="has no tokens") as error:
        drawn([*TEXTS, "~"], samples=41)
    assert error.value.where == "d.jsonl:41"


def test_chats_are_rendered_by_the_models_own_template(tmp_path):
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    path = write(tmp_path / "c.jsonl", {"messages": chat})
    asked = settings(samples=1, maximum_tokens=99, chat_template=True)
    with_template = draw_calibration(read_sources(path, asked), asked, LetterTokenizer(chat_template="{{ x }}"))
    assert text_of(with_template.sequences[0]) == "<user>Hi<assistant>Ho"
    assert START not in with_template.sequences[0]
    with pytest.raises(ConfigError, match="the model has no chat template"):
        draw_calibration(read_sources(path, asked), asked, LetterTokenizer())


HALF = r"\\ud[8c]00 is half of a character"


@pytest.mark.parametrize(
    ("line", "message", "chat"),
    [
        (b"{}", "'text' is missing", False),
        (b"no json", "not a JSON object", False),
        (b'{"text": " "}', "'text' is empty", False),
        (b'{"text": 3}', "'text' is not text", False),
        (b"[]", "not a JSON object", False),
        (b'{"text": "\xff"}', "not UTF-8", False),
        (b'{"text": "a \\ud800"}', HALF, False),
        (b'{"messages": [{"role": "user", "content": "a"}]}', "'text' is missing", False),
        (b'{"text": "a"}', "'messages' is missing", True),
        (b'{"messages": "a"}', "'messages' is not text", True),
        (b'{"messages": []}', "'messages' is empty", True),
        (b'{"messages": [{"content": "a"}]}', "without a role", True),
        (b'{"messages": [{"role": "user"}]}', "without content", True),
        (b'{"messages": [{"role": "user", "content": " "}]}', "'messages' is empty", True),
        (b'{"messages": [{"role": "user", "content": "\\udc00"}]}', HALF, True),
    ],
)
def test_a_line_that_is_no_sample_is_named(tmp_path, line, message, chat):
    path = tmp_path / "d.jsonl"
    fine = b'{"text": "fine", "messages": [{"role": "user", "content": "fine"}]}'
    path.write_bytes(fine + b"\n\n" + line + b"\n")
    with pytest.raises(ConfigError, match=message) as error:
        read_sources(path, settings(chat_template=chat))
    assert error.value.where == f"{path}:3"


def test_a_published_calibration_set_is_read_in_the_order_of_its_sources(tmp_path):
    for number in range(11):
        write(tmp_path / f"{number}-d.jsonl", {"text": f"source {number}"})
    asked = settings(sources=[f"{number}.jsonl" for number in range(11)])
    assert [source[0].content for source in read_sources(tmp_path, asked)] == [f"source {n}" for n in range(11)]
    with pytest.raises(ConfigError, match=re.escape("11 jsonl or parquet files for 1 sources")):
        read_sources(tmp_path, settings())
