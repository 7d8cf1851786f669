"""How a model ends and samples, by the files that models really have."""

from __future__ import annotations

import json

import pytest

from llm_pipeline.artifacts.model_rules import ChatFormat, ModelRules, SamplingDefaults, read_model_rules
from llm_pipeline.base.errors import IntegrityError

TOKENS = {"<s>": 0, "</s>": 1, "<|im_end|>": 2}
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def tokenizer_json(tokens=TOKENS, text=("a", "b")):
    words = [*tokens, *text]
    return {
        "added_tokens": [{"id": number, "content": token, "special": True} for token, number in tokens.items()],
        "model": {"type": "BPE", "vocab": {word: number for number, word in enumerate(words)}, "merges": []},
    }


@pytest.fixture
def rules(tmp_path):
    """Rules of a model with these files; a `__` in a name stands for the dot."""

    def read(**files):
        for name, content in ({"tokenizer__json": tokenizer_json()} | files).items():
            path = tmp_path / name.replace("__", ".")
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return read_model_rules(tmp_path)

    return read


def test_an_answer_ends_at_every_token_that_one_of_the_files_names(rules):
    found = rules(
        generation_config__json={"eos_token_id": [1, 2]},
        config__json={"eos_token_id": 1},
        tokenizer_config__json={"eos_token": "</s>"},
    )
    assert (found.end_tokens, found.pad_token) == ((1, 2), 1)


def test_the_chat_format_is_the_default_template_and_the_tokens_that_it_may_name(rules):
    tokens = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None}
    found = rules(tokenizer_config__json={**tokens, "chat_template": "old"}, chat_template__jinja=CHATML)
    assert found.chat == ChatFormat(template=CHATML, special_tokens={"bos_token": "<s>", "eos_token": "</s>"})


def test_the_tokenizers_own_end_token_is_one(rules):
    """Fine-tuned chat models whose configuration is still that of the base model."""
    found = rules(config__json={"eos_token_id": 1}, tokenizer_config__json={"eos_token": {"content": "<|im_end|>"}})
    assert found.end_tokens == (1, 2)


@pytest.mark.parametrize(
    "template",
    [
        {"tokenizer_config__json": {"chat_template": CHATML}},
        {"tokenizer_config__json": {"chat_template": [{"name": "default", "template": CHATML}]}},
        {"chat_template__jinja": CHATML},
        {"chat_template__json": {"chat_template": CHATML}},
    ],
    ids=["text", "named", "jinja", "json"],
)
def test_the_token_that_ends_a_turn_of_the_chat_template_is_one(rules, template):
    assert rules(config__json={"eos_token_id": 1}, **template).end_tokens == (1, 2)


def test_what_ends_a_turn_must_be_a_token_of_its_own(rules):
    """Else it is spelled by pieces that stand in other text, too."""
    found = rules(
        tokenizer__json=tokenizer_json({"<s>": 0, "</s>": 1}),
        config__json={"eos_token_id": 1},
        chat_template__jinja=CHATML,
    )
    assert found.end_tokens == (1,)


def test_the_end_of_a_thought_ends_no_answer(rules):
    """gpt-oss writes `<|end|>` between its thoughts and its answer."""
    harmony = tokenizer_json({"<s>": 0, "<|return|>": 1, "<|end|>": 2})
    found = rules(
        tokenizer__json=harmony, config__json={"eos_token_id": 1}, chat_template__jinja="{{ m.content }}<|end|>"
    )
    assert found.end_tokens == (1,)


def test_a_piece_of_text_ends_answers_only_where_no_better_file_names_what_does(rules):
    """Transformers writes `eos_token_id: 2` into the configuration of every Llama that says nothing else."""
    files = {"tokenizer__json": tokenizer_json({"<s>": 0, "</s>": 1}), "config__json": {"eos_token_id": 2}}
    assert rules(**files).end_tokens == (2,)
    assert rules(**files, generation_config__json={"eos_token_id": 1}).end_tokens == (1,)


def test_the_decoders_part_of_config_json_counts(rules):
    assert rules(config__json={"text_config": {"eos_token_id": [1, 2]}}).end_tokens == (1, 2)


def test_a_model_that_names_none_has_none(rules):
    assert rules(config__json={"eos_token_id": None, "pad_token_id": -1}) == ModelRules()


def test_the_defaults_of_sampling_are_those_of_generation_config_json(rules):
    found = rules(
        generation_config__json={
            "do_sample": True, "temperature": 0.6, "top_k": 20.0, "repetition_penalty": 2.35, "max_new_tokens": 3,
            "transformers_version": "5.5.4", "pad_token_id": 0,
        },
    )  # fmt: skip
    assert found.pad_token == 0
    assert found.sampling == SamplingDefaults(
        do_sample=True, temperature=0.6, top_k=20, repetition_penalty=2.35, max_new_tokens=3
    )


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"generation_config__json": {"eos_token_id": "</s>"}}, "eos_token_id is </s>: '</s>' is no token's number"),
        ({"generation_config__json": {"temperature": "0.6"}}, "temperature is '0.6', which is no number"),
        ({"generation_config__json": {"do_sample": 1}}, "do_sample is '1', which is no switch"),
        ({"generation_config__json": "[]"}, "not a JSON object"),
        ({"tokenizer__json": "{"}, "not usable JSON"),
    ],
    ids=["token", "number", "switch", "list", "torn"],
)
def test_a_malformed_file_is_named(rules, files, problem):
    with pytest.raises(IntegrityError, match=problem) as caught:
        rules(**files)
    assert caught.value.where.endswith(next(iter(files)).replace("__", "."))
    assert "replace it with the published" in caught.value.hint
