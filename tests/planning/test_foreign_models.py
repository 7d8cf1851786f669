"""Models whose files nobody here made: kinds of layers, heads and quantization as their publishers write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from published import config_of, facts_of

from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.model_facts.facts import MatrixGroup
from llm_pipeline.model_facts.grouping import HeldTensor
from llm_pipeline.model_facts.layout import caches
from llm_pipeline.model_facts.reader import ModelDocuments, read_facts, stated_context, with_defaults
from llm_pipeline.model_facts.words import ConfigWords
from llm_pipeline.planning import host
from llm_pipeline.planning.release_checks import unread_format
from llm_pipeline.planning.sources import require_loader
from llm_pipeline.release.loading import load_release

FOREIGN = json.loads((Path(__file__).parent / "foreign_models.json").read_text())
LLAMA = config_of("Llama-3.1-8B")


@pytest.mark.parametrize("name", FOREIGN["caches"])
def test_what_layers_keep_follows_from_their_own_kinds_and_heads(name: str):
    case = FOREIGN["caches"][name]
    words = ConfigWords(with_defaults(case["config"]))
    kept = [
        {"layers": len(group.layers), "heads": group.heads, "elements": group.elements, "window": group.window,
         "state": group.state_bytes}
        for group in caches(words)
    ]  # fmt: skip
    assert kept == case["kept"]
    assert words.count("num_hidden_layers") == sum(group["layers"] for group in kept)


@pytest.mark.parametrize("name", FOREIGN["quantization"])
def test_weights_that_transformers_is_not_asked_to_read_are_named_as_their_vendor_does(name: str):
    case = FOREIGN["quantization"][name]
    facts = read_facts(ModelDocuments({**LLAMA, **case["config"]}))
    assert facts.stored_format == case["format"]
    assert bool(unread_format(facts)) is not case["read"]


def test_weights_of_other_types_are_quantized_whatever_config_json_says():
    tensors = [HeldTensor("model.embed_tokens.weight", "BF16", (128256, 4096), 128256 * 4096 * 2)]
    plain = read_facts(ModelDocuments(LLAMA, [*tensors, HeldTensor("h.0.mask", "U8", (1, 1024, 1024), 2**20)]))
    eight_bit = HeldTensor("model.layers.0.mlp.up_proj.weight", "F8_E4M3", (2**15, 2**15), 2**30)
    assert plain.stored_format == ""
    assert read_facts(ModelDocuments(LLAMA, [*tensors, eight_bit])).stored_format == "F8_E4M3"


def test_experts_that_modelopt_quantized_cannot_be_read_back_and_plain_ones_can():
    experts = MatrixGroup(name="l.{layer}.experts.{expert}.w", layers=(0,), rows=64, columns=64, copies=8)
    mixture = facts_of("Llama-3.1-8B").model_copy(update={"matrices": (experts,), "stored_format": "modelopt FP8"})
    quantized = mixture.model_copy(update={"stored_bytes": experts.parameters})
    assert "experts" in unread_format(quantized)
    assert unread_format(mixture.model_copy(update={"stored_bytes": 3 * experts.parameters})) == ""


def test_a_model_that_transformers_does_not_know_is_refused_before_its_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    table = tmp_path / "lib/python3.11/site-packages/transformers/models/auto/modeling_auto.py"
    table.parent.mkdir(parents=True)
    table.write_text(
        'OTHERS = OrderedDict(\n    [\n        ("t5", "T5Model"),\n    ]\n)\n\n'
        "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = OrderedDict(\n    [\n        # one a line\n"
        '        ("llama", "LlamaForCausalLM"),\n        (\n            "gemma3",\n            "Gemma3ForCausalLM",\n'
        "        ),\n    ]\n)\n"
    )
    (tmp_path / "lib/python3.11/site-packages/transformers-5.5.4.dist-info").mkdir()
    monkeypatch.setattr(host, "_model_packages", lambda _: tmp_path / "lib/python3.11/site-packages")
    loaded = load_release(Path(__file__).parents[2] / "configs" / "releases" / "demo.yaml")
    known = host.causal_models(loaded.deployment)
    assert known == host.CausalModels("5.5.4", frozenset({"llama", "gemma3"}))
    require_loader(loaded, ModelDocuments({"model_type": "gemma3"}))
    for stranger in ("t5", "deepseek_v32"):
        with pytest.raises(Unsupported, match=f"no causal language model for model_type '{stranger}'"):
            require_loader(loaded, ModelDocuments({"model_type": stranger}))
    table.write_text("CAUSAL = load_table()\n")
    assert host.causal_models(loaded.deployment) is None  # a table of another form proves nothing


VALUES: tuple[Any, ...] = (5, -1, 2.5, True, "x", [], {}, [1, "a"], [[1]], {"a": 1}, {"a": [1]}, [{"a": 1}])
MIXTURE = {**config_of("Qwen3-30B-A3B"), "mlp_only_layers": [0], "first_k_dense_replace": 1}
QUANTIZED = {**MIXTURE, "quantization_config": {"quant_method": "compressed-tensors", "config_groups": {},
             "ignore": [], "bits": 4, "group_size": 128, "modules_to_not_convert": []}}  # fmt: skip
SCALED = {**LLAMA, "rope_scaling": {"rope_type": "yarn", "type": "yarn", "factor": 2.0,
          "original_max_position_embeddings": 8192}, "sliding_window": 8, "max_window_layers": 2}  # fmt: skip
KINDS = {**LLAMA, "layer_types": ["attention"] * 32, "architectures": ["X"], "hybrid_layer_pattern": [0],
         "attn_layer_indices": [1],
         "linear_attn_config": {"kda_layers": [1], "num_heads": 1, "head_dim": 1}}  # fmt: skip


def changed(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The config, with every value of it and of what is in it as something else."""
    found = [{**config, key: value} for key in config for value in VALUES]
    for key, inner in config.items():
        if isinstance(inner, dict):
            found += [{**config, key: below} for below in changed(inner)]
    return found


@pytest.mark.parametrize("config", [MIXTURE, QUANTIZED, SCALED, KINDS, {**KINDS, "layer_types": None}])
def test_any_value_of_any_key_is_facts_or_one_clear_error(config: dict[str, Any]):
    hints = {"state it"}
    for document in changed(config):
        stated_context(document)
        try:
            read_facts(ModelDocuments({**document, "num_hidden_layers": 2}), {"parameters": 10**9})
        except ConfigError as error:
            hints.add(error.hint)
    assert all(hints)
