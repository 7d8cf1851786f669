"""Small tasks of lm-eval and a small chat model, for tests of the scorer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CHOICE: dict[str, Any] = {
    "task": "pick", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}},
    "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{q}}", "doc_to_choice": ["yes", "no"],
    "doc_to_target": "{{a}}", "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}  # fmt: skip
SAY: dict[str, Any] = {key: CHOICE[key] for key in CHOICE if key not in ("doc_to_choice", "metric_list")} | {
    "task": "say", "output_type": "generate_until",
    "generation_kwargs": {"until": ["\n"], "do_sample": False, "max_gen_toks": 4},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}  # fmt: skip
SHOTS: dict[str, Any] = CHOICE | {"task": "shots", "num_fewshot": 2, "fewshot_split": "test"}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}[/]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def write_tasks(directory: Path, *tasks: dict[str, Any], rows: int = 20) -> Path:
    """Task files, and documents of their own for them."""
    directory.mkdir(parents=True, exist_ok=True)
    documents = [{"q": f"Is water {n} wet?", "a": "yes" if n % 3 else "no"} for n in range(rows)]
    (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    for task in tasks:
        (directory / f"{task.get('task')}.yaml").write_text(json.dumps(task))
    return directory


def write_chat_model(directory: Path, template: str | None = TEMPLATE, positions: int = 256) -> Path:
    """An untrained Llama with a chat format and a tokenizer that begins each text with `<s>`."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["is water wet? yes no"], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    fast.chat_template = template
    fast.save_pretrained(directory)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=positions, bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).half().save_pretrained(directory)
    return directory
