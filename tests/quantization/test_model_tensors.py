"""Real models of many architectures, made tiny and random, as Transformers itself writes them."""

from __future__ import annotations

import json
import sys
import time

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file

from llm_pipeline.base.errors import IntegrityError, Unsupported
from llm_pipeline.quantization.model_tensors import require_model_tensors

SIZES = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 24, "max_position_embeddings": 32, "pad_token_id": 0,
}  # fmt: skip
GPT = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32, "n_inner": 32, "vocab_size": 24}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
           "moe_intermediate_size": 8}  # fmt: skip
LATENT = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4,
          "n_group": 2, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
          "num_key_value_heads": 4}  # fmt: skip
ARCHITECTURES = {
    "llama": {}, "qwen2": {}, "qwen3": {}, "gemma": {}, "gemma2": {}, "gemma3_text": {}, "mistral": {}, "phi": {},
    "phi3": {}, "olmo2": {}, "stablelm": {}, "starcoder2": {}, "cohere": {}, "granite": {}, "smollm3": {},
    "mixtral": EXPERTS, "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 8}, "qwen3_moe": EXPERTS,
    "olmoe": EXPERTS, "deepseek_v3": {**EXPERTS, **LATENT},
    "gpt2": GPT, "gptj": {**GPT, "rotary_dim": 4}, "gpt_bigcode": GPT, "gpt_neox": {},
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    "opt": {"ffn_dim": 32, "word_embed_proj_dim": 16}, "bloom": {"n_layer": 2, "n_head": 4},
    "falcon": {"head_dim": None, "num_key_value_heads": None},
    "mpt": {"d_model": 16, "n_heads": 4, "n_layers": 2},
}  # fmt: skip


def tiny(kind: str, dtype: torch.dtype = torch.bfloat16, **changes: object):
    settings = {key: value for key, value in (SIZES | ARCHITECTURES[kind] | changes).items() if value is not None}
    config = transformers.AutoConfig.for_model(kind, **settings)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_what_transformers_writes_of_an_architecture_is_its_model(kind, dtype, tmp_path):
    tiny(kind, dtype).save_pretrained(tmp_path, max_shard_size="100MB" if dtype is torch.float32 else "4KB")
    require_model_tensors(tmp_path)


def changed(kind, directory, change, *, dtype=torch.bfloat16, **config):
    """A sound checkpoint whose tensors a function has changed."""
    tiny(kind, dtype, **config).save_pretrained(directory)
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
    return directory


def put(name, tensor):
    return lambda tensors: tensors.update({name: tensor(tensors)})


def without(name):
    return lambda tensors: tensors.pop(name)


LAYER = "model.layers.1"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("llama", f"{LAYER}.input_layernorm.weight"),
        ("llama", "model.norm.weight"),
        ("llama", "model.embed_tokens.weight"),
        ("llama", "lm_head.weight"),
        ("llama", f"{LAYER}.self_attn.k_proj.weight"),
        ("qwen2", f"{LAYER}.self_attn.q_proj.bias"),
        ("qwen3", f"{LAYER}.self_attn.q_norm.weight"),
        ("gpt2", "transformer.wpe.weight"),
        ("qwen3_moe", f"{LAYER}.mlp.gate.weight"),
        ("deepseek_v3", f"{LAYER}.mlp.gate.e_score_correction_bias"),
    ],
)
def test_a_missing_tensor_is_named(kind, name, tmp_path):
    with pytest.raises(IntegrityError, match=rf"1 tensor is missing: {name}") as caught:
        require_model_tensors(changed(kind, tmp_path, without(name), tie_word_embeddings=kind == "gpt2"))
    assert "random numbers" in caught.value.hint


def test_a_missing_embedding_that_two_places_share_is_missing_in_both(tmp_path):
    with pytest.raises(IntegrityError, match=r"2 tensors are missing: lm_head.weight, model.embed_tokens.weight"):
        require_model_tensors(
            changed("llama", tmp_path, without("model.embed_tokens.weight"), tie_word_embeddings=True)
        )


def renumber(old, new):
    def change(tensors):
        for name in [name for name in tensors if f".{old}." in name]:
            tensors[name.replace(f".{old}.", f".{new}.")] = tensors.pop(name)

    return change


@pytest.mark.parametrize(
    ("kind", "change", "problem"),
    [
        ("llama", put("model.extra", lambda _: torch.ones(2)), "1 tensor is not the model's: model.extra"),
        ("llama", put("v_head.weight", lambda _: torch.ones(2)), "not the model's: v_head.weight"),
        ("llama", renumber("layers.1", "layers.2"), "are missing: .*model.layers.1.*not the model's: model.layers.2"),
        ("llama", put(f"{LAYER}.mlp.up_proj.weight", lambda held: held[f"{LAYER}.mlp.up_proj.weight"].T),
         r"another shape: model.layers.1.mlp.up_proj.weight is \[16, 32\], the model's is \[32, 16\]"),
        ("llama", put("model.norm.weight", lambda _: torch.ones(8, dtype=torch.bfloat16)), r"is \[8\], .* \[16\]"),
        ("llama", put("model.norm.weight", lambda _: torch.ones(16, dtype=torch.int64)),
         r"not BF16 or F32 \(config.json states bfloat16\): model.norm.weight is I64"),
        ("llama", put("model.norm.weight", lambda _: torch.ones(16, dtype=torch.float8_e4m3fn)), "is F8_E4M3"),
        ("llama", put("model.norm.weight", lambda _: torch.ones(16, dtype=torch.float16)), "is F16"),
        ("llama", put("norm.weight", lambda held: held["model.norm.weight"].clone()),
         "stored twice under different names: norm.weight"),
        ("gpt2", put("transformer.h.2.attn.c_attn.bias", lambda _: torch.ones(48)), "not the model's"),
        ("qwen3_moe", without(f"{LAYER}.mlp.experts.2.up_proj.weight"), "not convertible: model.layers.1.mlp.experts"),
        ("qwen3_moe", without(f"{LAYER}.mlp.experts.2.down_proj.weight"), r"is \[3, 16, 8\], the model's is \[4, "),
        ("qwen3_moe", renumber("layers.1.mlp.experts.2", "layers.1.mlp.experts.7"), "gaps: .*experts.7.down_proj"),
    ],
)  # fmt: skip
def test_a_tensor_that_is_not_the_model_s_is_named(kind, change, problem, tmp_path):
    with pytest.raises(IntegrityError, match=problem):
        require_model_tensors(changed(kind, tmp_path, change))


def test_all_kinds_of_difference_are_told_at_once_and_long_lists_cut(tmp_path):
    def change(tensors):
        for name in [name for name in tensors if "layers.1" in name]:
            tensors[f"other.{name}"] = tensors.pop(name)

    with pytest.raises(IntegrityError, match=r"9 tensors are missing: .* and 4 more; 9 tensors are not the model's"):
        require_model_tensors(changed("llama", tmp_path, change))


def test_both_half_types_in_one_checkpoint_are_refused_whatever_is_stated(tmp_path):
    half = put("model.norm.weight", lambda held: held["model.norm.weight"].to(torch.float16))
    directory = changed("llama", tmp_path, half)
    config = json.loads((directory / "config.json").read_text())
    for stated in ({}, {"dtype": "float32"}):
        rest = {key: value for key, value in config.items() if key != "dtype"}
        (directory / "config.json").write_text(json.dumps(rest | stated))
        with pytest.raises(IntegrityError, match=r"1 tensor is F16 among others: model.norm.weight"):
            require_model_tensors(directory)


def test_norms_may_be_kept_in_single_precision(tmp_path):
    single = put("model.norm.weight", lambda held: held["model.norm.weight"].float())
    require_model_tensors(changed("llama", tmp_path, single))


def test_a_tied_head_may_be_stored_if_it_is_the_embedding(tmp_path):
    head = put("lm_head.weight", lambda held: held["model.embed_tokens.weight"].clone())
    require_model_tensors(changed("llama", tmp_path, head, tie_word_embeddings=True))


def test_a_tied_embedding_may_be_stored_as_the_head_alone(tmp_path):
    def change(tensors):
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")

    require_model_tensors(changed("llama", tmp_path, change, tie_word_embeddings=True))


def test_a_tied_head_with_other_values_is_refused(tmp_path):
    head = put("lm_head.weight", lambda held: held["model.embed_tokens.weight"] + 1)
    with pytest.raises(IntegrityError, match=r"different values: .*lm_head.weight"):
        require_model_tensors(changed("llama", tmp_path, head, tie_word_embeddings=True))


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("llama", f"{LAYER}.self_attn.rotary_emb.inv_freq"),
        ("gpt2", "transformer.h.1.attn.bias"),
        ("gptj", "transformer.h.1.attn.masked_bias"),
        ("gpt_neo", "transformer.h.1.attn.attention.bias"),
        ("gpt_neox", "gpt_neox.layers.1.attention.masked_bias"),
        ("gpt_neox", "gpt_neox.layers.1.attention.rotary_emb.inv_freq"),
        ("deepseek_v3", "model.layers.61.enorm.weight"),
    ],
)
def test_what_publishers_are_known_to_leave_in_is_left_out(kind, extra, tmp_path):
    require_model_tensors(changed(kind, tmp_path, put(extra, lambda _: torch.ones(1, dtype=torch.uint8))))


def test_a_base_model_s_names_are_those_of_the_hub(tmp_path):
    """As gpt2 and bloom are published."""

    def change(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)

    require_model_tensors(changed("gpt2", tmp_path, change))


MOE = "block_sparse_moe.experts.{expert}"
PUBLISHED = {
    # WizardLM-2-8x22B's model.safetensors.index.json of 2024-04-16: Mixtral's names
    "mixtral": ("lm_head model.embed_tokens model.norm",
                f"model.layers.{{layer}}.: {MOE}.w1 {MOE}.w2 {MOE}.w3 block_sparse_moe.gate input_layernorm "
                "post_attention_layernorm self_attn.k_proj self_attn.o_proj self_attn.q_proj self_attn.v_proj", {}),
    # falcon-180B-chat's of 2023-09-20
    "falcon": ("lm_head transformer.ln_f transformer.ln_f.bias transformer.word_embeddings",
               "transformer.h.{layer}.: ln_attn ln_attn.bias ln_mlp ln_mlp.bias mlp.dense_4h_to_h mlp.dense_h_to_4h "
               "self_attention.dense self_attention.query_key_value",
               {"new_decoder_architecture": True, "num_kv_heads": 2}),
    # gemma-2b's of 2024-02-29
    "gemma": ("model.embed_tokens model.norm",
              "model.layers.{layer}.: input_layernorm mlp.down_proj mlp.gate_proj mlp.up_proj post_attention_layernorm "
              "self_attn.k_proj self_attn.o_proj self_attn.q_proj self_attn.v_proj", {}),
    # bloom's of 2023-12-14
    "bloom": ("ln_f ln_f.bias word_embeddings word_embeddings_layernorm word_embeddings_layernorm.bias",
              "h.{layer}.: input_layernorm input_layernorm.bias mlp.dense_4h_to_h mlp.dense_4h_to_h.bias "
              "mlp.dense_h_to_4h mlp.dense_h_to_4h.bias post_attention_layernorm post_attention_layernorm.bias "
              "self_attention.dense self_attention.dense.bias self_attention.query_key_value "
              "self_attention.query_key_value.bias", {}),
}  # fmt: skip
"""Tensor names as the hub has them: outside the layers, in each layer, and what the configuration says besides."""


@pytest.mark.parametrize("kind", PUBLISHED)
def test_names_as_they_are_published_are_the_model_s(kind, tmp_path):
    outside, inside, config = PUBLISHED[kind]
    prefix, _, leaves = inside.partition(": ")
    templates = [*outside.split(), *(prefix + leaf for leaf in leaves.split())]
    whole = [name if name.endswith(".bias") else f"{name}.weight" for name in templates]
    names = {name.format(layer=layer, expert=expert) for name in whole for layer in range(2) for expert in range(4)}
    tiny(kind, **config).save_pretrained(tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in written.items()}
    tied = bare.get("word_embeddings.weight")
    save_file(
        {name: bare.get(name.removeprefix("transformer."), tied).clone() for name in names},
        tmp_path / "model.safetensors",
    )
    require_model_tensors(tmp_path)


def test_a_model_that_transformers_does_not_know_is_unsupported(tmp_path):
    tiny("llama").save_pretrained(tmp_path)
    for config, problem in (
        ({"model_type": "no_such_model"}, "no_such_model"),
        ({"model_type": "clip"}, "CLIPConfig"),
        ({"model_type": "llama", "hidden_size": "wide"}, "hidden_size"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(Unsupported, match=problem):
            require_model_tensors(tmp_path)


def test_a_model_quantized_by_others_is_refused(tmp_path):
    tiny("llama").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(IntegrityError, match=r"config.json is quantized"):
        require_model_tensors(tmp_path)


def test_transformers_4_has_no_conversions_and_only_prefixes_differ(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.core_model_loading", None)
    sound = tiny("llama", tie_word_embeddings=True)
    sound.save_pretrained(tmp_path / "sound")
    require_model_tensors(tmp_path / "sound")

    def prefix(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    require_model_tensors(changed("llama", tmp_path / "base", prefix, tie_word_embeddings=True))
    for change, problem in (
        (without("model.norm.weight"), "1 tensor is missing: model.norm.weight"),
        (put("x", lambda _: torch.ones(1)), "1 tensor is not the model's: x"),
        (put("model.norm.weight", lambda _: torch.ones(8)), r"is \[8\], the model's is \[16\]"),
        (put("norm.weight", lambda _: torch.ones(16)), "stored twice"),
    ):
        with pytest.raises(IntegrityError, match=problem):
            require_model_tensors(changed("llama", tmp_path / "broken", change, tie_word_embeddings=True))


def test_a_model_of_seventy_billion_weights_is_compared_in_seconds_and_without_its_memory(tmp_path):
    """Sparse files: the headers are real, the numbers take no disk."""
    sizes = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
             "num_key_value_heads": 8, "vocab_size": 128256, "head_dim": 128}  # fmt: skip
    config = transformers.LlamaConfig(**sizes, dtype="bfloat16", architectures=["LlamaForCausalLM"])
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    header, end = {}, 0
    for name, tensor in model.state_dict().items():
        start, end = end, end + tensor.numel() * 2
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with (tmp_path / "model.safetensors").open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + end)
    started = time.process_time()
    require_model_tensors(tmp_path)
    assert time.process_time() - started < 10
