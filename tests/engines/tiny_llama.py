"""A small random llama, its quantized exports and their read-back models, for tests that need real parts.

As a script (`python tiny_llama.py DIRECTORY`, in the model environment) it makes a checkpoint and its engine there.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from llm_pipeline.quantization.readback import load_model

WORDS = ("the", "cat", "sees", "a", "red", "moon", "over", "two", "old", "trees", "while", "seven", "dogs", "sing")
RECIPES = {
    "fp8": "FP8_DEFAULT_CFG",
    "fp8_kv_fp8": "FP8_DEFAULT_CFG",
    "int8_smoothquant": "INT8_SMOOTHQUANT_CFG",
    "int4_awq": "INT4_AWQ_CFG",
    "int4_blockwise": "INT4_BLOCKWISE_WEIGHT_ONLY_CFG",
    "w4a8_awq": "W4A8_AWQ_BETA_CFG",
    "int4_awq in groups of 32": "INT4_AWQ_CFG",
}
REFUSED = {"nvfp4": "NVFP4_DEFAULT_CFG"}
MIXED = {
    "layers.0.self_attn.[qkv]_proj": "FP8_DEFAULT_CFG",
    "layers.0.self_attn.o_proj": "FP8_PER_CHANNEL_PER_TOKEN_CFG",
    "layers.0.mlp": "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG",
    "layers.1.self_attn.[qkv]_proj": "INT8_DEFAULT_CFG",
    "layers.1.self_attn.o_proj": "INT8_WEIGHT_ONLY_CFG",
    "layers.1.mlp.[gu]*_proj": "INT4_BLOCKWISE_WEIGHT_ONLY_CFG",
    "layers.1.mlp.down_proj": "W4A8_AWQ_BETA_CFG",
}
"""A format for each layer; layers that read the same input have the same one, as a search leaves them."""
CONTEXT = 128


def prompts(count: int) -> list[str]:
    """Different prompts of 3 to 9 words."""
    return [
        " ".join(WORDS[(i * 7 + k * (i % 5 + 1)) % len(WORDS)] for k in range(3 + i % 7)) + f" {i}"
        for i in range(count)
    ]


def make_checkpoint(directory: Path) -> Path:
    """A fp16 checkpoint with random weights, large enough that greedy outputs differ, and a byte-level tokenizer."""
    torch.manual_seed(7)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=384, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(prompts(200), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    config = LlamaConfig(
        vocab_size=384, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=CONTEXT, bos_token_id=0, eos_token_id=1,
        tie_word_embeddings=False, initializer_range=0.15,
    )  # fmt: skip
    LlamaForCausalLM(config).half().save_pretrained(directory)
    fast.save_pretrained(directory)
    return directory


def export_quantized(checkpoint: Path, recipe: str, directory: Path) -> Path:
    """The checkpoint as modelopt quantizes and exports it."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint

    from llm_pipeline.config.quantization import QuantizationRecipe
    from llm_pipeline.quantization.modelopt_configs import modelopt_config

    tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)
    model = LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float16).eval()
    texts = [tokenizer(text, return_tensors="pt").input_ids for text in prompts(8)]

    def calibrate(calibrated: nn.Module) -> None:
        with torch.no_grad():
            for ids in texts:
                calibrated(input_ids=ids)

    settings = mixed_config() if recipe == "mixed" else copy.deepcopy(getattr(mtq, (RECIPES | REFUSED)[recipe]))
    if "groups of 32" in recipe:
        given = {"sources": ["calibration/demo.jsonl"], "samples": 8, "maximum_tokens": 16}
        settings = modelopt_config(
            QuantizationRecipe(name="g32", weights="int4_awq", group_size=32, exclude=[], calibration=given)
        )
    if "kv" in recipe:
        settings["quant_cfg"] += mtq.FP8_KV_CFG["quant_cfg"]
    model = mtq.quantize(model, settings, calibrate)
    with torch.inference_mode():
        export_hf_checkpoint(model, dtype=torch.float16, export_dir=directory)
    tokenizer.save_pretrained(directory)
    return directory


def mixed_config() -> dict[str, Any]:
    """modelopt's configuration of `MIXED`."""
    import modelopt.torch.quantization as mtq

    entries: list[dict[str, Any]] = [{"quantizer_name": "*", "enable": False}]
    for layers, name in MIXED.items():
        entries += [
            {**entry, "quantizer_name": f"*{layers}*{entry['quantizer_name'].lstrip('*')}"}
            for entry in getattr(mtq, name)["quant_cfg"]
            if entry.get("quantizer_name") in ("*weight_quantizer", "*input_quantizer") and "parent_class" not in entry
        ]
    return {"quant_cfg": entries, "algorithm": "max"}


def read_back(checkpoint: Path) -> Any:
    """The checkpoint in fp32, plain or quantized: what the accuracy gate judges."""
    return load_model(checkpoint, torch.float32)


def greedy_torch(model: Any, checkpoint: Path, texts: list[str], tokens: int) -> list[list[int]]:
    """Greedy token ids of each text, the end token ignored."""
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(checkpoint)
    outputs = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            full = model.generate(
                ids, max_new_tokens=tokens, min_new_tokens=0, do_sample=False, eos_token_id=None, pad_token_id=1
            )
        outputs.append(full[0, ids.shape[1] :].tolist())
    return outputs


def greedy_engine(engine: Path, texts: list[str], tokens: int) -> list[list[int]]:
    """The same from an engine, all texts in flight together."""
    import openvino_genai as genai

    from llm_pipeline.adapters.openvino.builder import scheduler
    from llm_pipeline.artifacts.engine_description import EngineDescription
    from llm_pipeline.config.target import EngineLimits

    properties = EngineDescription.read(engine).runtime_properties
    pipeline = genai.ContinuousBatchingPipeline(engine, scheduler(EngineLimits()), "CPU", properties)
    config = genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.apply_chat_template = tokens, True, False
    tokenizer = pipeline.get_tokenizer()
    handles = [pipeline.add_request(i, tokenizer.encode(text).input_ids, config) for i, text in enumerate(texts)]
    while pipeline.has_non_finished_requests():
        pipeline.step()
    return [list(handle.read_all()[0].generated_ids) for handle in handles]


def main(directory: Path) -> None:
    """Make `checkpoint/` and `engine/` in the directory."""
    from llm_pipeline.config.target import Target
    from llm_pipeline.engines.builder import BuildInputs, engine_builder

    directory.mkdir(parents=True, exist_ok=True)
    checkpoint = make_checkpoint(directory / "checkpoint")
    target = Target(name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu")
    engine_builder("openvino_cpu").build(BuildInputs(checkpoint, target, dtype="float16"), directory / "engine")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
