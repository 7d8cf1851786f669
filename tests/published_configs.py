"""Configurations that people published, cut to the keys that look like paths, with where each was read.

All were read on 2026-11-22 in public GitHub repositories that quote the model's file; the values are as quoted there.
"""

from __future__ import annotations

from typing import Any

HARMLESS: dict[str, tuple[str, dict[str, Any]]] = {
    "facebook/galactica-125m, quoted by jedibobo/trt2023-final-jedibobo": (
        "tokenizer_config.json",
        {
            "name_or_path": "/content/tokenizer",
            "special_tokens_map_file": "/content/tokenizer/special_tokens_map.json",
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": False},
            "pad_token": None,
        },
    ),
    "a Chinese BART tokenizer": (
        "tokenizer_config.json",
        {
            "name_or_path": "/remote-home/yfshao/workdir/code-base/Megatron-LM/init_models_ckpt/bart_zh/base",
            "special_tokens_map_file": "vocab/cpt_v3_vocab/special_tokens_map.json",
            "tokenizer_file": None,
            "never_split": None,
        },
    ),
    "a Korean BERT tokenizer": (
        "tokenizer_config.json",
        {"special_tokens_map_file": None, "tokenizer_file": None, "tokenizer_class": "BertTokenizer"},
    ),
    "a T5 tokenizer": (
        "tokenizer_config.json",
        {"sp_model_kwargs": {}, "tokenizer_file": None, "full_tokenizer_file": None, "init_inputs": []},
    ),
    "a local copy of Qwen/Qwen2.5-0.5B-Instruct": (
        "config.json",
        {
            "_name_or_path": "/opt/xxx/models/Qwen2.5-0.5B-Instruct/",
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "rope_scaling": None,
        },
    ),
    "mlx-community/LocateAnything-3B-4bit": (
        "config.json",
        {
            "vision_config": {
                "_attn_implementation_autoset": True,
                "_name_or_path": "moonshotai/MoonViT-SO-400M",
                "auto_map": {"AutoModel": "moonshotai/MoonViT-SO-400M--modeling_moonvit.MoonVitPretrainedModel"},
                "model_type": "moonvit",
            }
        },
    ),
    "shi-labs/oneformer_ade20k_dinat_large": (
        "config.json",
        {
            "_name_or_path": "shi-labs/oneformer_ade20k_dinat_large",
            "backbone": None,
            "backbone_config": {"depths": [3]},
        },
    ),
    "a Mamba 2 checkpoint": ("config.json", {"model_type": "mamba2", "time_step_limit": [0.0, float("inf")]}),
}
