"""The tensors that known architectures have, by config.json alone: for where the headers of the weights are not read.

Names and shapes are those of the published checkpoints. Headers, where they were read, count more than this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from llm_pipeline.model_facts.caches import head_size, kv_heads
from llm_pipeline.model_facts.words import ConfigWords


class Shaped(NamedTuple):
    """A tensor's name and shape."""

    name: str
    shape: tuple[int, ...]


class _Decoder(NamedTuple):
    """What architectures of the Llama kind differ in.

    Attributes:
        norms: Norms of the residual's width in a layer.
        head_norms: Queries and keys are normalized head by head.
        biases: The projections to queries, keys and values have biases.
        fused: Queries, keys and values are one matrix; so are gate and up.
        tied: The head is the embedding table where config.json does not say.
    """

    norms: int = 2
    head_norms: bool = False
    biases: bool = False
    fused: bool = False
    tied: bool = False


_DECODERS: Mapping[str, _Decoder] = {
    "llama": _Decoder(),
    "mistral": _Decoder(),
    "mixtral": _Decoder(),
    "granite": _Decoder(),
    "smollm3": _Decoder(tied=True),
    "qwen2": _Decoder(biases=True),
    "qwen2_moe": _Decoder(biases=True),
    "qwen3": _Decoder(head_norms=True),
    "qwen3_moe": _Decoder(head_norms=True),
    "gemma": _Decoder(tied=True),
    "gemma2": _Decoder(norms=4, tied=True),
    "gemma3_text": _Decoder(norms=4, head_norms=True, tied=True),
    "phi3": _Decoder(fused=True),
    "gpt_oss": _Decoder(biases=True),
    "deepseek_v2": _Decoder(),
    "deepseek_v3": _Decoder(),
    "kimi_k2": _Decoder(),
}


def is_known(words: ConfigWords) -> bool:
    """Whether the decoder's architecture is one of those whose tensors are known."""
    return words.model_type in _DECODERS


def expected_tensors(words: ConfigWords) -> list[Shaped] | None:
    """All tensors of the decoder; None for an architecture that is not known here.

    Raises:
        ConfigError: A size is missing.
    """
    decoder = _DECODERS.get(words.model_type)
    if decoder is None:
        return None
    hidden, vocabulary = words.count("hidden_size"), words.count("vocab_size")
    found = [Shaped("model.embed_tokens.weight", (vocabulary, hidden)), Shaped("model.norm.weight", (hidden,))]
    if not words.flag("tie_word_embeddings", decoder.tied):
        found.append(Shaped("lm_head.weight", (vocabulary, hidden)))
    norms = [Shaped(f"norm{number}.weight", (hidden,)) for number in range(decoder.norms)]
    every = [*_attention(words, decoder), *norms]
    mlps: dict[bool, list[Shaped]] = {}
    for layer in range(words.count("num_hidden_layers")):
        dense = _is_dense(words, layer)
        mlps[dense] = mlps.get(dense) or [*_mlp(words, decoder, dense=dense)]
        found += [Shaped(f"model.layers.{layer}.{name}", shape) for name, shape in (*every, *mlps[dense])]
    return found


def _attention(words: ConfigWords, decoder: _Decoder) -> Iterator[Shaped]:
    if words.optional("kv_lora_rank") is not None:
        yield from _latent_attention(words)
        return
    hidden, width = words.count("hidden_size"), head_size(words)
    queries, keys = words.count("num_attention_heads") * width, kv_heads(words) * width
    if decoder.fused:
        yield Shaped("self_attn.qkv_proj.weight", (queries + 2 * keys, hidden))
    else:
        for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            yield Shaped(f"self_attn.{name}.weight", (rows, hidden))
            if decoder.biases or words.flag("attention_bias", False):
                yield Shaped(f"self_attn.{name}.bias", (rows,))
    yield Shaped("self_attn.o_proj.weight", (hidden, queries))
    if words.flag("attention_bias", False):
        yield Shaped("self_attn.o_proj.bias", (hidden,))
    if decoder.head_norms:
        yield from (Shaped(f"self_attn.{name}_norm.weight", (width,)) for name in ("q", "k"))
    if words.model_type == "gpt_oss":
        yield Shaped("self_attn.sinks", (words.count("num_attention_heads"),))


def _latent_attention(words: ConfigWords) -> Iterator[Shaped]:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""
    hidden, heads, latent = words.count("hidden_size"), words.count("num_attention_heads"), words.count("kv_lora_rank")
    plain, rotary, value = (words.count(f"{name}_head_dim") for name in ("qk_nope", "qk_rope", "v"))
    queries = heads * (plain + rotary)
    if (rank := words.optional("q_lora_rank")) is not None:
        yield Shaped("self_attn.q_a_proj.weight", (rank, hidden))
        yield Shaped("self_attn.q_a_layernorm.weight", (rank,))
        yield Shaped("self_attn.q_b_proj.weight", (queries, rank))
    else:
        yield Shaped("self_attn.q_proj.weight", (queries, hidden))
    yield Shaped("self_attn.kv_a_proj_with_mqa.weight", (latent + rotary, hidden))
    yield Shaped("self_attn.kv_a_layernorm.weight", (latent,))
    yield Shaped("self_attn.kv_b_proj.weight", (heads * (plain + value), latent))
    yield Shaped("self_attn.o_proj.weight", (hidden, heads * value))


def _mlp(words: ConfigWords, decoder: _Decoder, *, dense: bool) -> Iterator[Shaped]:
    hidden = words.count("hidden_size")
    if dense:
        yield from _gated("mlp", words.count("intermediate_size"), hidden, fused=decoder.fused)
        return
    experts, width = words.count("num_experts"), words.optional("moe_intermediate_size")
    width = width or words.count("intermediate_size")
    kind = words.model_type
    if kind == "gpt_oss":
        yield from _fused_experts(experts, width, hidden)
        return
    place = "block_sparse_moe" if kind == "mixtral" else "mlp"
    yield Shaped(f"{place}.gate.weight", (experts, hidden))
    if kind in ("deepseek_v3", "kimi_k2"):
        yield Shaped(f"{place}.gate.e_score_correction_bias", (experts,))
    names = ("w1", "w3", "w2") if kind == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    for expert in range(experts):
        yield from _gated(f"{place}.experts.{expert}", width, hidden, names)
    if shared := words.optional("shared_expert_intermediate_size"):
        yield from _gated(f"{place}.shared_expert", shared, hidden)
        yield Shaped(f"{place}.shared_expert_gate.weight", (1, hidden))
    elif shared := words.optional("n_shared_experts"):
        yield from _gated(f"{place}.shared_experts", shared * width, hidden)


def _is_dense(words: ConfigWords, layer: int) -> bool:
    if words.optional("num_experts") is None:
        return True
    if layer in (words.get("mlp_only_layers") or ()) or layer < (words.get("first_k_dense_replace") or 0):
        return True
    step = words.optional("decoder_sparse_step") or words.optional("moe_layer_freq") or 1
    offset = 1 if words.get("decoder_sparse_step") else 0
    return (layer + offset) % step != 0


def _gated(
    place: str, width: int, hidden: int, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"), *,
    fused: bool = False,
) -> Iterator[Shaped]:  # fmt: skip
    gate, up, down = names
    if fused:
        yield Shaped(f"{place}.gate_up_proj.weight", (2 * width, hidden))
    else:
        yield Shaped(f"{place}.{gate}.weight", (width, hidden))
        yield Shaped(f"{place}.{up}.weight", (width, hidden))
    yield Shaped(f"{place}.{down}.weight", (hidden, width))


def _fused_experts(experts: int, width: int, hidden: int) -> Iterator[Shaped]:
    """gpt-oss: all experts of a layer in one tensor, each [rows, columns] as the quantized checkpoints have them."""
    yield Shaped("mlp.router.weight", (experts, hidden))
    yield Shaped("mlp.router.bias", (experts,))
    yield Shaped("mlp.experts.gate_up_proj", (experts, 2 * width, hidden))
    yield Shaped("mlp.experts.gate_up_proj_bias", (experts, 2 * width))
    yield Shaped("mlp.experts.down_proj", (experts, hidden, width))
    yield Shaped("mlp.experts.down_proj_bias", (experts, hidden))
