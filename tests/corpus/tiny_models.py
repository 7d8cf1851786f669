"""Tiny models of many architectures: two layers, seeded weights, tokenizers trained on text, safetensors.

    python tests/corpus/tiny_models.py DIRECTORY [NAME ...]    # in the model environment; no network

Weights are wide enough apart that greedy answers differ from prompt to prompt. `CONTEXT` is the context of every model
but the thinking one.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from ready_checkpoints import make_ready
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, set_seed

CONTEXT = 128
VOCABULARY = 512
LARGE_VOCABULARY = 100_000

Spelling = Literal["bytes", "bytes_with_start", "pieces"]

_COMMON = ("the", "cat", "sees", "a", "red", "moon", "over", "two", "old", "trees", "while", "seven", "dogs", "sing",
           "and", "the", "naïve", "café", "sleeps")  # fmt: skip
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT, "bos_token_id": 0,
    "eos_token_id": 1, "pad_token_id": 1, "tie_word_embeddings": False, "initializer_range": 0.15,
}  # fmt: skip
"""What most architectures call their sizes."""


@dataclass(frozen=True)
class TinyModel:
    """One model of the corpus.

    Attributes:
        model_type: Architecture.
        changes: Of its configuration, against `SIZES`; None leaves a key out.
        spelling: How its tokenizer writes text: bytes (GPT-2, Qwen), the same behind a start token (Llama 3), or
            SentencePiece's pieces with bytes for what is unknown (Gemma, Mistral, Phi-3).
        dtype: Precision of the weights.
        shard: Largest file; one file for all where it is empty.
        thinks: Whether it is made the chat model that thinks before it answers.
        ready: How it is quantized in the end, as if by somebody else: a method of `ready_checkpoints`.
    """

    model_type: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    spelling: Spelling = "bytes"
    dtype: torch.dtype = torch.float16
    shard: str = ""
    thinks: bool = False
    ready: str = ""

    def config(self) -> Any:
        """Its configuration."""
        values = {key: value for key, value in {**SIZES, **self.changes}.items() if value is not None}
        return AutoConfig.for_model(self.model_type, **values)


IM_START, IM_END, THINK, THOUGHT = "<|im_start|>", "<|im_end|>", "<think>", "</think>"
THOUGHT_TOKENS = 300
THINKING_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{ '<|im_start|>assistant\\n<think>' }}"
    "{%- if enable_thinking is defined and not enable_thinking -%}{{ '</think>' }}{%- endif -%}"
    "{%- endif -%}"
)


def _make_thinking(directory: Path) -> None:
    """A chat model that thinks unless its template is told not to; its last token alone says which one is next.

    `<think>` begins `THOUGHT_TOKENS` tokens of text, then come `</think>`, " moon" and `<|im_end|>`, an end token that
    only generation_config.json and the template name. The repetition penalty of generation_config.json makes it answer
    " cat" where the prompt has " moon".
    """
    spelled = AutoTokenizer.from_pretrained(directory)
    start, end, think, thought = spelled.convert_tokens_to_ids([IM_START, IM_END, THINK, THOUGHT])
    moon, cat = spelled.convert_tokens_to_ids(["Ġmoon", "Ġcat"])
    words = [number for number in range(2, start) if number not in (moon, cat)][:THOUGHT_TOKENS]
    chain = [think, *words, thought, moon, end]
    weights = load_file(directory / "model.safetensors")
    embedding, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    weights["model.norm.weight"].fill_(1)
    embedding /= embedding.float().norm(dim=1, keepdim=True).clamp_min(1e-6)  # that of padding is zero
    head *= 0
    for before, after in pairwise(chain):
        head[after] = 4 * embedding[before]
    head[cat] = 0.6 * head[moon]
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] *= 1e-3  # the layers compute, and the residual stays the last token's row
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    spelled.chat_template = THINKING_TEMPLATE
    spelled.save_pretrained(directory)
    generation = {"eos_token_id": [1, end], "pad_token_id": 1, "do_sample": True, "temperature": 0.6, "top_p": 0.95,
                  "top_k": 20, "repetition_penalty": 2.35, "max_new_tokens": 3}  # fmt: skip
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2))


_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
_GPT2 = {"n_embd": 128, "n_inner": 256, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
_GEMMA = {"head_dim": 32, "sliding_window": 32, "tie_word_embeddings": True, "query_pre_attn_scalar": 32}
_ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"]}

CORPUS: Mapping[str, TinyModel] = {
    "llama": TinyModel("llama", spelling="bytes_with_start"),
    "llama-odd-widths": TinyModel(
        "llama",
        {"hidden_size": 72, "intermediate_size": 200, "num_attention_heads": 6, "num_key_value_heads": 3},
        spelling="bytes_with_start",
    ),
    "llama-large-vocabulary": TinyModel("llama", {"vocab_size": LARGE_VOCABULARY}, dtype=torch.bfloat16),
    "llama-sharded": TinyModel("llama", spelling="pieces", shard="400KB"),
    "llama-tied": TinyModel("llama", {"tie_word_embeddings": True}),
    "qwen2": TinyModel("qwen2"),
    "qwen3": TinyModel("qwen3", {"head_dim": 32, "tie_word_embeddings": True}, dtype=torch.bfloat16),
    "qwen3-thinking": TinyModel(
        "qwen3", {"head_dim": 32, "max_position_embeddings": 1024}, dtype=torch.bfloat16, thinks=True
    ),
    "qwen3-moe": TinyModel("qwen3_moe", {"head_dim": 32, **_EXPERTS}),
    "mistral-window": TinyModel("mistral", {"head_dim": 32, "sliding_window": 32}, spelling="pieces"),
    "mixtral": TinyModel("mixtral", {"head_dim": 32, **_EXPERTS}, spelling="pieces"),
    "phi3": TinyModel("phi3", spelling="pieces"),
    "gemma2": TinyModel("gemma2", {**_GEMMA, **_ALTERNATING}, spelling="pieces", dtype=torch.bfloat16),
    "gemma3": TinyModel("gemma3_text", {**_GEMMA, **_ALTERNATING}, spelling="pieces", dtype=torch.bfloat16),
    "gpt2": TinyModel("gpt2", {**dict.fromkeys(SIZES), **{key: SIZES[key] for key in (
        "vocab_size", "bos_token_id", "eos_token_id", "initializer_range")}, **_GPT2}),
    "gpt-neox": TinyModel("gpt_neox", {"num_key_value_heads": None}),
    "granite": TinyModel("granite", {"logits_scaling": 2.0, "residual_multiplier": 0.7}),
    "olmo2": TinyModel("olmo2"),
    "smollm3": TinyModel("smollm3", {"no_rope_layers": [1, 0], "tie_word_embeddings": True}, dtype=torch.bfloat16),
    "llama-compressed-tensors": TinyModel("llama", ready="compressed-tensors"),
    "llama-gptq": TinyModel("llama", ready="gptq"),
}  # fmt: skip


def texts(count: int, seed: int = 5) -> list[str]:
    """Sentences of made-up and common words, all of them different."""
    draw = random.Random(seed)  # noqa: S311 - text, no secret
    words = [_word(draw) for _ in range(max(40, count // 4))]
    sentences = ([draw.choice(_COMMON if draw.random() < 0.6 else words) for _ in range(draw.randint(3, 9))]
                 for _ in range(count))  # fmt: skip
    return [f"{' '.join(sentence)} {number}" for number, sentence in enumerate(sentences)]


def _word(draw: random.Random) -> str:
    return "".join(draw.choice("bdfgklmnprstvz") + draw.choice("aeiou") for _ in range(draw.randint(2, 4)))


def make(name: str, directory: Path) -> Path:
    """Write one model into a new directory."""
    model = CORPUS[name]
    set_seed(11)
    made = AutoModelForCausalLM.from_config(model.config()).to(model.dtype)
    if made.config.tie_word_embeddings:  # else the residual is the last token's row, and so is the answer
        made.get_input_embeddings().weight.data *= 0.05
    for parameter in made.parameters():
        if parameter.dim() == 1:  # norms are all ones or zeros, biases zero: nobody would see them lost
            parameter.data += 0.1 * torch.randn_like(parameter)
    options = {"max_shard_size": model.shard} if model.shard else {}
    made.save_pretrained(directory, **options)
    added = (IM_START, IM_END, THINK, THOUGHT) if model.thinks else ()
    spelled = tokenizer(model.spelling, made.config.vocab_size - len(added))
    spelled.add_tokens([AddedToken(token, normalized=False, special=token in added[:2]) for token in added])
    spelled.save_pretrained(directory)
    if model.thinks:
        _make_thinking(directory)
    return make_ready(model.ready, directory, directory) if model.ready else directory


def tokenizer(spelling: Spelling, vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer of exactly so many tokens, trained on text."""
    unknown = {"byte_fallback": True, "unk_token": "<unk>"} if spelling == "pieces" else {}
    core = Tokenizer(models.BPE(**unknown))
    special, alphabet = ["<s>", "</s>"], pre_tokenizers.ByteLevel.alphabet()
    if spelling == "pieces":
        special += ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
        core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                          decoders.Strip(" ", 1, 0)])  # fmt: skip
        alphabet = []
    else:
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(texts(400 if vocabulary == VOCABULARY else 300_000), trainer)
    if spelling != "bytes":
        core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")


def main(arguments: list[str]) -> None:
    """Make the named models, or all."""
    root = Path(arguments[0])
    for name in arguments[1:] or CORPUS:
        make(name, root / name)


if __name__ == "__main__":
    main(sys.argv[1:])
