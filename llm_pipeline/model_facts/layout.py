"""What config.json says of the layers: their tensors, and what each keeps of a sequence. Pure.

Tensors: for where the headers of the weights are not read, which count more than this. Names and shapes are those of
the published checkpoints of known architectures.

Caches: keys and values, a latent, a window of them, or a state of fixed size. Attention of L layers keeps 2 x KV heads
x head size elements a token in each. Multi-head latent attention keeps one latent of kv_lora_rank and one rotary key
for all heads (DeepSeek-V2, arXiv 2405.04434, section 2.1). A layer with a sliding window needs no more tokens than the
window has. State-space layers keep a state and the last inputs of their convolution (Mamba-2, arXiv 2405.21060), linear
attention one matrix a head.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

from llm_pipeline.model_facts.facts import CacheGroup
from llm_pipeline.model_facts.grouping import HeldTensor
from llm_pipeline.model_facts.words import ConfigWords

_STATE_ELEMENT = 4
"""Bytes of one element of a state: engines keep it in float32."""

_ATTENTION = {"full_attention", "attention", "global", "*", "deepseek_sparse_attention"}
_SLIDING = {"sliding_attention", "chunked_attention", "local", "local_attention"}
_DELTA = "kimi_delta_attention"
_STATE = {"mamba", "mamba2", "linear_attention", "M", _DELTA}
_BOTH = {"hybrid"}
_NEITHER = {"mlp", "-", "moe", "E"}
_SLIDES_EVERYWHERE = {"mistral", "mixtral", "phi3", "starcoder2", "phi"}
"""Architectures with one window for all layers, where a window is set."""

_ALTERNATING = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
"""Layers of which the last has no window, where config.json names neither layer types nor a pattern."""

_PURE_STATE = {"mamba", "mamba2", "falcon_mamba"}


def caches(words: ConfigWords) -> tuple[CacheGroup, ...]:
    """What the layers keep, equal ones together.

    Raises:
        ConfigError: A kind of layer is not known, or a number that its cache follows from is missing.
    """
    layers = words.count("num_hidden_layers")
    if (stated := words.sizes.get("kv_bytes_per_token")) is not None:
        return (_stated(words, layers, stated),)
    kinds = layer_kinds(words, layers)
    groups: dict[CacheGroup, list[int]] = {}
    for number, kind in enumerate(kinds):
        groups.setdefault(_of_kind(words, kind), []).append(number)
    return tuple(group.model_copy(update={"layers": tuple(numbers)}) for group, numbers in groups.items())


def layer_kinds(words: ConfigWords, layers: int) -> tuple[str, ...]:
    """Kind of each layer, in the words of config.json.

    Raises:
        ConfigError: They are not as many as the layers.
    """
    if (named := words.named_layers) is not None:
        if len(named) != layers:
            raise words.unknown("layer_types", f"names kinds of {len(named)} layers, but it has {layers}")
        return tuple(map(str, named))
    if words.model_type in _PURE_STATE:
        return ("mamba",) * layers
    return tuple(_kinds_by_period(words, layers))


def _kinds_by_period(words: ConfigWords, layers: int) -> Iterator[str]:
    if indices := words.numbers("attn_layer_indices"):
        yield from ("attention" if number in indices else "mamba" for number in range(layers))
    elif kda := _delta_attention(words):
        yield from (_DELTA if number + 1 in kda else "attention" for number in range(layers))
    elif slides := words.numbers("hybrid_layer_pattern"):
        yield from ("sliding_attention" if number < len(slides) and slides[number] else "attention"
                    for number in range(layers))  # fmt: skip
    elif (period := words.optional("attn_layer_period")) is not None:
        offset = words.get("attn_layer_offset") or 0
        yield from ("attention" if number % period == offset else "mamba" for number in range(layers))
    elif (interval := words.optional("full_attention_interval")) is not None:
        yield from ("linear_attention" if (number + 1) % interval else "attention" for number in range(layers))
    elif words.model_type == "falcon_h1":
        yield from ("hybrid",) * layers
    else:
        yield from _kinds_by_window(words, layers)


def _kinds_by_window(words: ConfigWords, layers: int) -> Iterator[str]:
    window, kind = words.get("sliding_window"), words.model_type
    if window is None or words.get("use_sliding_window") is False:
        yield from ("attention",) * layers
        return
    every = words.optional("sliding_window_pattern") or _ALTERNATING.get(kind)
    first = words.optional("max_window_layers") or 0
    for number in range(layers):
        if every is not None:
            yield "sliding_attention" if (number + 1) % every else "attention"
        elif words.get("use_sliding_window"):
            yield "sliding_attention" if number >= first else "attention"
        else:
            yield "sliding_attention" if kind in _SLIDES_EVERYWHERE else "attention"


def _of_kind(words: ConfigWords, kind: str) -> CacheGroup:
    """The cache of one layer."""
    if kind in _ATTENTION:
        return _attention_cache(words, None)
    if kind in _SLIDING:
        chunk = kind == "chunked_attention"
        return _attention_cache(words, words.count("attention_chunk_size" if chunk else "sliding_window"))
    if kind in _STATE:
        return CacheGroup(layers=(), heads=1, state_bytes=_state_bytes(words, kind))
    if kind in _BOTH:
        return _attention_cache(words, None).model_copy(update={"state_bytes": _state_bytes(words, kind)})
    if kind in _NEITHER:
        return CacheGroup(layers=())
    raise words.unknown("layer_types", f"has layers of kind {kind[:40]!r}, whose cache plan does not know")


def _attention_cache(words: ConfigWords, window: int | None) -> CacheGroup:
    if (latent := words.optional("kv_lora_rank")) is not None:
        keys_of_index = words.optional("index_head_dim") or 0
        elements = latent + words.count("qk_rope_head_dim") + keys_of_index
        return CacheGroup(layers=(), heads=1, elements=elements, window=window)
    heads, keys, values = attention_heads(words, sliding=window is not None)
    return CacheGroup(layers=(), heads=heads, elements=keys + values, window=window)


def attention_heads(words: ConfigWords, *, sliding: bool) -> tuple[int, int, int]:
    """Heads of the KV cache in a layer with or without a window, and the width of a key and of a value.

    Gemma 4 has other heads in layers without a window, MiMo-V2 in those with one.
    """
    own = "swa" if sliding else "global"
    heads = words.optional("swa_num_key_value_heads" if sliding else "num_global_key_value_heads")
    keys = words.optional(f"{own}_head_dim") or head_size(words)
    values = words.optional(f"{own}_v_head_dim") or words.optional("v_head_dim") or keys
    return heads or kv_heads(words), keys, values


def kv_heads(words: ConfigWords) -> int:
    """Heads of the KV cache."""
    if words.get("multi_query") is True and words.get("new_decoder_architecture") is not True:
        return 1
    return words.optional("num_key_value_heads") or words.count("num_attention_heads")


def head_size(words: ConfigWords) -> int:
    """Width of one head."""
    stated = words.optional("head_dim")
    return stated if stated is not None else words.count("hidden_size") // words.count("num_attention_heads")


def _delta_attention(words: ConfigWords) -> Collection[Any]:
    """The layers of Kimi Linear (arXiv 2510.26692) that have no attention over all tokens, from 1."""
    config = words.get("linear_attn_config")
    kda = config.get("kda_layers") if isinstance(config, Mapping) else None
    return kda if isinstance(kda, list) else ()


def _state_bytes(words: ConfigWords, kind: str) -> int:
    if kind == "linear_attention":
        return _linear_attention_state(words)
    if kind == _DELTA:
        delta = ConfigWords(words.get("linear_attn_config"))
        matrices = delta.count("num_heads"), delta.count("head_dim")
        return _state_of_heads(matrices, matrices, delta.optional("short_conv_kernel_size"))
    if (heads := words.optional("mamba_num_heads") or words.optional("mamba_n_heads")) is not None:
        return _mamba2_state(words, heads)
    inner = words.optional("mamba_expand") or words.optional("expand")
    state = words.optional("mamba_d_state") or words.optional("state_size")
    if inner is None or state is None:
        raise words.unknown("layer_types", f"does not say how large the state of its {kind} layers is")
    kernel = words.optional("mamba_d_conv") or words.optional("conv_kernel") or 4
    return inner * words.count("hidden_size") * (state + kernel) * _STATE_ELEMENT


def _mamba2_state(words: ConfigWords, heads: int) -> int:
    width = words.optional("mamba_head_dim") or words.optional("mamba_d_head")
    state = words.optional("ssm_state_size") or words.optional("mamba_d_state") or words.optional("mamba_state_dim")
    groups = words.optional("n_groups") or words.optional("mamba_n_groups") or 1
    kernel = words.optional("conv_kernel") or words.optional("mamba_d_conv") or 4
    if width is None or state is None:
        raise words.unknown("layer_types", "does not say how large the state of its mamba layers is")
    convolution = (heads * width + 2 * groups * state) * kernel
    return (heads * width * state + convolution) * _STATE_ELEMENT


def _linear_attention_state(words: ConfigWords) -> int:
    keys = words.count("linear_num_key_heads"), words.count("linear_key_head_dim")
    values = words.count("linear_num_value_heads"), words.count("linear_value_head_dim")
    return _state_of_heads(keys, values, words.optional("linear_conv_kernel_dim"))


def _state_of_heads(keys: tuple[int, int], values: tuple[int, int], kernel: int | None) -> int:
    """A matrix a head, and the convolution's last inputs; `keys` and `values` are heads and width of one."""
    convolution = (2 * keys[0] * keys[1] + values[0] * values[1]) * (kernel or 4)
    return (values[0] * keys[1] * values[1] + convolution) * _STATE_ELEMENT


def _stated(words: ConfigWords, layers: int, kv_bytes: int) -> CacheGroup:
    """The release config's own figures, spread evenly over the layers."""
    state = words.sizes.get("state_bytes_per_sequence", 0)
    return CacheGroup(
        layers=tuple(range(layers)), heads=1, elements=-(-kv_bytes // (2 * layers)), state_bytes=-(-state // layers)
    )


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
    "qwen3": _Decoder(head_norms=True),
    "qwen3_moe": _Decoder(head_norms=True),
    "gemma": _Decoder(tied=True),
    "gemma2": _Decoder(norms=4, tied=True),
    "gemma3_text": _Decoder(norms=4, head_norms=True, tied=True),
    "phi3": _Decoder(fused=True),
}


def is_known(words: ConfigWords) -> bool:
    """Whether the decoder's architecture is one of those whose tensors are known."""
    return words.model_type in _DECODERS


def _tensor(name: str, shape: tuple[int, ...]) -> HeldTensor:
    return HeldTensor(name, "BF16", shape, 2 * prod(shape))


def expected_tensors(words: ConfigWords) -> list[HeldTensor] | None:
    """All tensors of the decoder; None for an architecture that is not known here.

    Raises:
        ConfigError: A size is missing.
    """
    decoder = _DECODERS.get(words.model_type)
    if decoder is None:
        return None
    hidden, vocabulary = words.count("hidden_size"), words.count("vocab_size")
    found = [_tensor("model.embed_tokens.weight", (vocabulary, hidden)), _tensor("model.norm.weight", (hidden,))]
    if not words.flag("tie_word_embeddings", decoder.tied):
        found.append(_tensor("lm_head.weight", (vocabulary, hidden)))
    norms = [_tensor(f"norm{number}.weight", (hidden,)) for number in range(decoder.norms)]
    every = [*_attention(words, decoder), *norms]
    every += _mlp(words, decoder)
    for layer in range(words.count("num_hidden_layers")):
        found += [tensor._replace(name=f"model.layers.{layer}.{tensor.name}") for tensor in every]
    return found


def _attention(words: ConfigWords, decoder: _Decoder) -> Iterator[HeldTensor]:
    hidden, width = words.count("hidden_size"), head_size(words)
    queries, keys = words.count("num_attention_heads") * width, kv_heads(words) * width
    if decoder.fused:
        yield _tensor("self_attn.qkv_proj.weight", (queries + 2 * keys, hidden))
    else:
        for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            yield _tensor(f"self_attn.{name}.weight", (rows, hidden))
            if decoder.biases or words.flag("attention_bias", False):
                yield _tensor(f"self_attn.{name}.bias", (rows,))
    yield _tensor("self_attn.o_proj.weight", (hidden, queries))
    if words.flag("attention_bias", False):
        yield _tensor("self_attn.o_proj.bias", (hidden,))
    if decoder.head_norms:
        yield from (_tensor(f"self_attn.{name}_norm.weight", (width,)) for name in ("q", "k"))


def _mlp(words: ConfigWords, decoder: _Decoder) -> Iterator[HeldTensor]:
    hidden, experts = words.count("hidden_size"), words.optional("num_experts")
    if experts is None:
        yield from _gated("mlp", words.count("intermediate_size"), hidden, fused=decoder.fused)
        return
    mixtral = words.model_type == "mixtral"
    place = "block_sparse_moe" if mixtral else "mlp"
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    width = words.optional("moe_intermediate_size") or words.count("intermediate_size")
    yield _tensor(f"{place}.gate.weight", (experts, hidden))
    for expert in range(experts):
        yield from _gated(f"{place}.experts.{expert}", width, hidden, names)


def _gated(
    place: str, width: int, hidden: int, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"), *,
    fused: bool = False,
) -> Iterator[HeldTensor]:  # fmt: skip
    gate, up, down = names
    if fused:
        yield _tensor(f"{place}.gate_up_proj.weight", (2 * width, hidden))
    else:
        yield _tensor(f"{place}.{gate}.weight", (width, hidden))
        yield _tensor(f"{place}.{up}.weight", (width, hidden))
    yield _tensor(f"{place}.{down}.weight", (hidden, width))
