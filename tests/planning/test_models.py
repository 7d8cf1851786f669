"""What is read of models that nobody here made: sizes, layers, heads, caches and packed weights."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
from judging import gpu_target, recipe
from published import NAMES, config_of, facts_of, figures_of

from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.config.target import Parallelism
from llm_pipeline.model_facts.facts import MatrixGroup, ModelFacts
from llm_pipeline.model_facts.grouping import HeldTensor
from llm_pipeline.model_facts.layout import caches
from llm_pipeline.model_facts.reader import ModelDocuments, read_facts, stated_context, with_defaults
from llm_pipeline.model_facts.words import ConfigWords
from llm_pipeline.planning import host
from llm_pipeline.planning.memory import rank_kv_bytes_per_request, rank_weight_bytes, weight_bytes
from llm_pipeline.planning.release_checks import unread_format
from llm_pipeline.planning.sources import require_loader
from llm_pipeline.planning.target_plan import judge_memory
from llm_pipeline.release.loading import load_release


@pytest.mark.parametrize("name", NAMES)
def test_parameters_and_bytes_are_those_that_were_published(name: str):
    facts, figures = facts_of(name), figures_of(name)
    if "parameters" in figures:
        assert facts.parameters == figures["parameters"]
    else:
        assert facts.parameters / 1e9 == pytest.approx(figures["parameters_billions"], rel=0.001)
    if "total_size" in figures:
        assert facts.stored_bytes == figures["total_size"]


@pytest.mark.parametrize("name", NAMES)
def test_context_and_cache_are_those_of_the_architecture(name: str):
    facts, figures = facts_of(name), figures_of(name)
    assert facts.context_length == figures["context_length"]
    assert 2 * facts.kv_elements_per_token == figures["kv_bytes_per_token"]


@pytest.mark.parametrize("name", [name for name in NAMES if "active_billions" in figures_of(name)])
def test_active_parameters_are_those_that_were_published(name: str):
    """Some count the embedding table and the head among them, some do not."""
    facts = facts_of(name)
    published, outside = figures_of(name)["active_billions"], facts.embedding_parameters + facts.head_parameters
    assert (facts.active_parameters - outside) / 1e9 * 0.97 <= published <= facts.active_parameters / 1e9 * 1.02


def test_sliding_windows_are_those_of_the_architecture():
    def windows(name: str) -> dict[int | None, int]:
        return {cache.window: len(cache.layers) for cache in facts_of(name).caches}

    assert windows("Gemma-2-9B") == {4096: 21, None: 21}
    assert windows("Gemma-3-1B") == {512: 22, None: 4}
    assert windows("gpt-oss-20b") == {128: 12, None: 12}
    assert windows("Mistral-7B-v0.1") == {4096: 32}
    assert windows("Mistral-7B-v0.3") == {None: 32}
    assert windows("Phi-3-mini-4k") == {2047: 32}
    assert windows("Qwen2.5-7B") == {None: 28}


def test_experts_are_counted_by_layer():
    assert facts_of("DeepSeek-V3").experts == 256
    assert facts_of("Mixtral-8x7B").experts == 8
    assert not facts_of("Llama-3.1-8B").is_mixture
    assert facts_of("Llama-3.1-8B").active_parameters == facts_of("Llama-3.1-8B").parameters


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
MIXTURE = config_of("Qwen3-30B-A3B")
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


PLAIN = recipe("none")


def test_a_latent_is_held_whole_by_every_rank():
    assert rank_kv_bytes_per_request(facts_of("DeepSeek-V3"), Parallelism(tensor=8), 2, 32) == 32 * 70_272


def test_the_fullest_stage_of_a_pipeline_is_one_without_the_dense_layers():
    deepseek = facts_of("DeepSeek-V3").model_copy(update={"stored_format": ""})
    halves = rank_weight_bytes(deepseek, PLAIN, Parallelism(pipeline=2))
    assert halves > 2 * deepseek.parameters / 2


def test_experts_that_cannot_be_spread_are_refused():
    spread = gpu_target("H200-SXM-141GB", parallelism={"tensor": 8, "expert": 3}, accelerator_count=8)
    _, refused = judge_memory(spread, PLAIN, facts_of("Mixtral-8x7B"))
    assert refused is not None
    assert refused.reason == "8 experts cannot be spread over expert parallelism 3"
    assert refused.nearest == "parallelism.expert: 2"


QWEN_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next", "num_hidden_layers": 8, "full_attention_interval": 4, "hidden_size": 2048,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16,
    "linear_key_head_dim": 128, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
"""The numbers of Qwen/Qwen3-Next-80B-A3B-Instruct, of eight layers."""


def test_linear_attention_keeps_a_matrix_a_head():
    linear, attention = caches(ConfigWords(QWEN_NEXT))
    assert (linear.layers, attention.layers) == ((0, 1, 2, 4, 5, 6), (3, 7))
    assert attention.heads * attention.elements == 2 * 2 * 256
    assert linear.state_bytes == 4 * (32 * 128 * 128 + (2 * 16 * 128 + 32 * 128) * 4)


def test_what_a_sequence_keeps_may_be_stated_by_hand():
    sizes = {"kv_bytes_per_token": 4_000, "state_bytes_per_sequence": 9_000}
    (group,) = caches(ConfigWords({"model_type": "of_its_own", "num_hidden_layers": 4}, sizes))
    assert (group.elements * group.heads, group.state_bytes) == (500, 2_250)


def test_qwen_with_windows_slides_from_the_layer_that_its_config_names():
    config = config_of("Qwen2.5-7B") | {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}
    assert {group.window: len(group.layers) for group in caches(ConfigWords(config))} == {None: 20, 4096: 8}


ROWS, COLUMNS, VOCABULARY = 256, 512, 1024
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": COLUMNS, "intermediate_size": 1024,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048, "tie_word_embeddings": True,
}  # fmt: skip
BYTES = {"I32": 4, "U8": 1, "F8_E4M3": 1, "F16": 2, "BF16": 2, "F32": 4}
KEYS = "model.layers.0.self_attn.k_proj"


def facts_with(quantization: dict[str, Any], tensors: dict[str, tuple[str, tuple[int, ...]]]) -> ModelFacts:
    """A model of one matrix of 256 x 512, packed in some way."""
    held = {"model.embed_tokens.weight": ("BF16", (VOCABULARY, COLUMNS)), **tensors}
    found = [HeldTensor(name, dtype, shape, prod(shape) * BYTES[dtype]) for name, (dtype, shape) in held.items()]
    return read_facts(ModelDocuments(CONFIG | {"quantization_config": quantization}, tensors=found))


PACKED = {
    "awq 4 bit": ({"quant_method": "awq", "bits": 4, "group_size": 128}, {
        f"{KEYS}.qweight": ("I32", (COLUMNS, ROWS // 8)), f"{KEYS}.qzeros": ("I32", (4, ROWS // 8)),
        f"{KEYS}.scales": ("F16", (4, ROWS)),
    }),
    "gptq 4 bit": ({"quant_method": "gptq", "bits": 4, "group_size": 128}, {
        f"{KEYS}.qweight": ("I32", (COLUMNS // 8, ROWS)), f"{KEYS}.qzeros": ("I32", (4, ROWS // 8)),
        f"{KEYS}.scales": ("F16", (4, ROWS)), f"{KEYS}.g_idx": ("I32", (COLUMNS,)),
    }),
    "gptq 3 bit": ({"quant_method": "gptq", "bits": 3, "group_size": 128}, {
        f"{KEYS}.qweight": ("I32", (COLUMNS * 3 // 32, ROWS)), f"{KEYS}.qzeros": ("I32", (4, ROWS * 3 // 32)),
        f"{KEYS}.scales": ("F16", (4, ROWS)), f"{KEYS}.g_idx": ("I32", (COLUMNS,)),
    }),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, {
        f"{KEYS}.weight": ("F8_E4M3", (ROWS, COLUMNS)), f"{KEYS}.weight_scale_inv": ("F32", (2, 4)),
    }),
    "compressed-tensors W4A16": (
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}},
        {f"{KEYS}.weight_packed": ("I32", (ROWS, COLUMNS // 8)), f"{KEYS}.weight_scale": ("BF16", (ROWS, 4)),
         f"{KEYS}.weight_shape": ("I32", (2,))},
    ),
    "modelopt NVFP4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, {
        f"{KEYS}.weight": ("U8", (ROWS, COLUMNS // 2)), f"{KEYS}.weight_scale": ("F8_E4M3", (ROWS, COLUMNS // 16)),
        f"{KEYS}.weight_scale_2": ("F32", ()), f"{KEYS}.input_scale": ("F32", ()),
    }),
    "modelopt W4A16_AWQ": ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, {
        f"{KEYS}.weight": ("U8", (ROWS // 2, COLUMNS)), f"{KEYS}.weight_scale": ("F32", (ROWS, 4)),
        f"{KEYS}.pre_quant_scale": ("BF16", (COLUMNS,)),
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", PACKED)
def test_packed_weights_count_as_many_parameters_as_they_stand_for(name: str):
    facts = facts_with(*PACKED[name])
    assert facts.stored_format == name
    assert [(group.rows, group.columns) for group in facts.matrices] == [(ROWS, COLUMNS)]
    assert facts.parameters == VOCABULARY * COLUMNS + ROWS * COLUMNS
    assert sum(facts.stored_by_dtype.values()) == facts.stored_bytes < 2 * facts.parameters
    assert weight_bytes(facts, recipe("none")) == facts.stored_bytes


@pytest.mark.parametrize("tied", [True, False])
def test_a_single_rank_holds_all_that_is_stored(tied: bool):
    """An embedding table that is the head, too, is stored once."""
    quantization, tensors = PACKED["fp8"]
    if not tied:
        tensors = tensors | {"lm_head.weight": ("BF16", (VOCABULARY, COLUMNS))}
    facts = facts_with(quantization, tensors)
    assert facts.tied_embeddings is tied
    assert rank_weight_bytes(facts, recipe("none"), Parallelism()) == facts.stored_bytes


def test_experts_in_one_packed_tensor_are_as_many_as_it_holds():
    config = config_of("gpt-oss-20b")
    one = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    experts = "model.layers.0.mlp.experts"
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "model.embed_tokens.weight": ("BF16", (201_088, 2880)),
        f"{KEYS}.weight": ("BF16", (512, 2880)),
        f"{experts}.gate_up_proj_blocks": ("U8", (32, 5760, 90, 16)),
        f"{experts}.gate_up_proj_scales": ("U8", (32, 5760, 90)),
        f"{experts}.gate_up_proj_bias": ("BF16", (32, 5760)),
    }
    found = [HeldTensor(name, dtype, shape, prod(shape) * BYTES[dtype]) for name, (dtype, shape) in shapes.items()]
    facts = read_facts(ModelDocuments(config | one, tensors=found))
    fused = next(group for group in facts.matrices if group.kind == "fused")
    assert (fused.copies, fused.active, fused.rows, fused.columns) == (32, 4, 5760, 2880)
    assert facts.other_parameters == 32 * 5760
