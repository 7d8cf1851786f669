"""A checkpoint that somebody else quantized is asked what the model is asked, or refused."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from transformers import AutoTokenizer

from llm_pipeline.artifacts.checkpoint_loading import require_same_text
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.demo.train import train_tokenizer

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture
def model(tmp_path):
    tokenizer = train_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def checkpoint(model, tmp_path):
    """Writes the tokenizer of a checkpoint, which is the model's but for a change."""

    def write(change):
        tokenizer = AutoTokenizer.from_pretrained(model)
        change(tokenizer)
        tokenizer.save_pretrained(tmp_path / "checkpoint")
        return tmp_path / "checkpoint"

    return write


def test_white_space_at_the_end_of_a_template_is_no_other_template(model, checkpoint):
    require_same_text(model, checkpoint(lambda tokenizer: setattr(tokenizer, "chat_template", f"{TEMPLATE}\n")))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tokenizer: tokenizer.add_tokens(["<tool>"]), r"differs in 1 of 512 tokens: \['<tool>'\]"),
        (lambda tokenizer: setattr(tokenizer, "chat_template", "{{ messages }}"), "its chat template is another one"),
    ],
)
def test_a_checkpoint_of_another_text_is_refused_with_what_differs(change, said, model, checkpoint):
    with pytest.raises(IntegrityError, match=said) as refused:
        require_same_text(model, checkpoint(change))
    assert "the tokenizer and the chat template of the release's model and revision" in refused.value.hint
