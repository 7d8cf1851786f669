from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from briefly_trained import checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.demo.train import add_outliers, train_demo_model


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return checkpoint(tmp_path_factory.getbasetemp())


def test_a_checkpoint_is_complete_says_how_it_was_made_and_ends_at_its_end_token(trained):
    names = {path.name for path in trained.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
    assert "outlier channels are not learnt" in (trained / "README.md").read_text()
    model, tokenizer = AutoModelForCausalLM.from_pretrained(trained), AutoTokenizer.from_pretrained(trained)
    assert (model.dtype, model.generation_config.eos_token_id) == (torch.float16, 1)
    tokens = tokenizer("add 2 to 3 : é")["input_ids"]
    assert tokens[0] == tokenizer.bos_token_id
    assert tokenizer.decode(tokens, skip_special_tokens=True) == "add 2 to 3 : é"


def test_outliers_change_weights_but_no_output(trained):
    model = AutoModelForCausalLM.from_pretrained(trained, dtype=torch.float32)
    tokens = torch.tensor([[0, 40, 41, 42, 43]])
    with torch.no_grad():
        before, largest = model(tokens).logits, model.model.layers[0].mlp.up_proj.weight.abs().max()
        add_outliers(model, 8.0, 4)
        after = model(tokens).logits
    assert torch.allclose(before, after, atol=1e-3)
    assert model.model.layers[0].mlp.up_proj.weight.abs().max() > largest


def test_an_existing_output_is_refused_before_training(tmp_path):
    with pytest.raises(ConfigError, match="exists"):
        train_demo_model(tmp_path)
