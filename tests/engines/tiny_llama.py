"""A small random llama and what it answers, for tests that need real parts; `quantization/exports.py` quantizes it.

As a script (`python tiny_llama.py DIRECTORY`, in the model environment) it makes a checkpoint and its engine there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from llm_pipeline.quantization.readback import load_model

WORDS = ("the", "cat", "sees", "a", "red", "moon", "over", "two", "old", "trees", "while", "seven", "dogs", "sing")
CONTEXT = 128


def prompts(count: int) -> list[str]:
    """Different prompts of 3 to 9 words."""
    return [
        " ".join(WORDS[(i * 7 + k * (i % 5 + 1)) % len(WORDS)] for k in range(3 + i % 7)) + f" {i}"
        for i in range(count)
    ]


def make_checkpoint(directory: Path, positions: int = CONTEXT) -> Path:
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
        num_key_value_heads=2, max_position_embeddings=positions, bos_token_id=0, eos_token_id=1,
        tie_word_embeddings=False, initializer_range=0.15,
    )  # fmt: skip
    LlamaForCausalLM(config).half().save_pretrained(directory)
    fast.save_pretrained(directory)
    return directory


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
