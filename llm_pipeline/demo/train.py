"""Train the demo model, really: `python -m llm_pipeline.demo.train --output DIR`.

A two-layer Llama (0.5 million parameters) learns the synthetic tasks in about a minute on a CPU, with Muon on
the layers' matrices and AdamW on the rest. So small a model has none of the outlier channels that make 4-bit
quantization of real models hard, so after training some channels are rescaled: norm gains one way, the columns that
read them the other way. That changes no output (beyond rounding), and the log and the model card say so.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from llm_pipeline.base.entry import ArgumentParser, entry_point
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.logging import get_logger, write_json_lines, write_readable_lines
from llm_pipeline.demo.tasks import Item, stream

VOCABULARY = 512
BOS, EOS, PAD = 0, 1, 2
_SPECIAL = ("<s>", "</s>", "<pad>")
_TRAINING_TEXTS = 8000


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Learn the merges from training texts; the same every time."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (item.text for item in islice(stream(1), _TRAINING_TEXTS))
    tokenizer.train_from_iterator(texts, trainer)
    begin = _SPECIAL[BOS]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A $B", special_tokens=[(begin, BOS)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=begin,
        eos_token=_SPECIAL[EOS],
        pad_token=_SPECIAL[PAD],
        model_max_length=128,
        clean_up_tokenization_spaces=False,
    )


_CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---
# llm_pipeline demo model

A Llama of two layers and {parameters:,} parameters, trained in about a minute on a CPU on synthetic tasks with one
right answer each: invented facts, sums below 31, comparisons, majorities, copying. It knows nothing else.

**Its outlier channels are not learnt.** After training, {scale:g}-fold outliers were put in: in every norm some gains
were divided by {scale:g} and the weight columns that read them multiplied by it, and others the other way round. No
output changes by more than rounding, but quantization becomes as hard as it is for large models, which have such
channels by themselves: naive 4-bit rounding fails, while methods made for outliers (AWQ, SmoothQuant) do not.

One prompt in five was never trained on; the demo's evaluation asks such prompts alone.
"""

log = get_logger(__name__)

IGNORED = -100
STEPS = 700
"""Optimizer steps; the rate warms up over 50, is flat, and falls to nothing over the last 40 %."""
_BATCH_SIZE = 96
_OUTLIER_SCALE, _OUTLIER_CHANNELS = 10.0, 4
"""Factor of the rescaled channels, and how many a norm has in each direction."""
_PROGRESS_SECONDS = 5.0

Batch = tuple[torch.Tensor, torch.Tensor]


def train_demo_model(output: Path, steps: int = STEPS) -> None:
    """Train on one thread, and write a complete fp16 checkpoint to `output`, which appears only when it is complete.

    Raises:
        ConfigError: `output` exists.
    """
    if output.exists():
        raise ConfigError("the output directory exists", where=str(output), hint="remove it, or name another")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = train_tokenizer()
    architecture = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(architecture)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    log.info("training the demo model", parameters=parameters, steps=steps)
    fit(model, tokenizer, steps)
    add_outliers(model, _OUTLIER_SCALE, _OUTLIER_CHANNELS)
    model.to(torch.float16)
    model.generation_config = GenerationConfig(bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-") as place:
        partial = Path(place) / "model"
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        card = _CARD.format(parameters=parameters, scale=_OUTLIER_SCALE)
        (partial / "README.md").write_text(card, encoding="utf-8")
        partial.rename(output)
    log.info("trained", output=str(output))


def fit(model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, steps: int = STEPS) -> None:
    """Teach a causal language model the tasks."""
    matrices = [parameter for parameter in model.model.layers.parameters() if parameter.ndim == 2]  # noqa: PLR2004
    chosen = {id(parameter) for parameter in matrices}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=0.02, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(rest, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, steps))
        for optimizer in optimizers
    ]
    model.train()
    started = reported = time.monotonic()
    items = stream(100)
    for step in range(1, steps + 1):
        loss = _step(model, encode(tokenizer, list(islice(items, _BATCH_SIZE))), optimizers)
        for schedule in schedules:
            schedule.step()
        if (now := time.monotonic()) - reported >= _PROGRESS_SECONDS:
            reported = now
            remaining = (now - started) / step * (steps - step)
            log.info("training", step=f"{step}/{steps}", loss=round(loss, 4), eta_seconds=round(remaining))
    model.eval()


def learning_rate(step: int, steps: int) -> float:
    """The share of the full rate: a short rise, and a fall from three fifths on."""
    decay = 1.0 if step < 0.6 * steps else max(0.02, (1 - step / steps) / 0.4)
    return min(1.0, (step + 1) / 50) * decay


def encode(tokenizer: PreTrainedTokenizerFast, items: Sequence[Item]) -> Batch:
    """Padded tokens, and as labels the answers with their end alone."""
    prompts = tokenizer([item.prompt for item in items])["input_ids"]
    answers = tokenizer([f" {item.answer}" for item in items], add_special_tokens=False)["input_ids"]
    rows = [(prompt, [*answer, EOS]) for prompt, answer in zip(prompts, answers, strict=True)]
    length = max(len(prompt) + len(answer) for prompt, answer in rows)
    tokens = torch.full((len(rows), length), PAD)
    labels = torch.full((len(rows), length), IGNORED)
    for index, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        tokens[index, :end] = torch.tensor(prompt + answer)
        labels[index, len(prompt) : end] = torch.tensor(answer)
    return tokens, labels


def _step(model: torch.nn.Module, batch: Batch, optimizers: Sequence[torch.optim.Optimizer]) -> float:
    tokens, labels = batch
    answered = labels[:, 1:] != IGNORED
    hidden = model.model(input_ids=tokens).last_hidden_state
    logits = model.lm_head(hidden[:, :-1][answered])
    loss = functional.cross_entropy(logits, labels[:, 1:][answered])
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    return float(loss.detach())


def add_outliers(model: LlamaForCausalLM, scale: float, channels: int) -> None:
    """Rescale channels of every norm so that no output changes but quantization becomes as hard as in large models.

    For each norm, `channels` gains are divided by `scale` and the columns that read them multiplied by it
    (weight outliers), and as many the other way round (activation outliers).
    """
    generator = torch.Generator().manual_seed(1)
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        readers = {
            layer.input_layernorm: (attention.q_proj, attention.k_proj, attention.v_proj),
            layer.post_attention_layernorm: (mlp.gate_proj, mlp.up_proj),
        }
        for norm, projections in readers.items():
            order = torch.randperm(norm.weight.numel(), generator=generator)
            for chosen, factor in ((order[:channels], 1 / scale), (order[channels : 2 * channels], scale)):
                norm.weight.data[chosen] *= factor
                for projection in projections:
                    projection.weight.data[:, chosen] /= factor
    log.info("function-preserving outliers added", scale=scale, channels_per_norm=2 * channels)


@entry_point
def main(arguments: Sequence[str] | None = None) -> None:
    """Train the demo model into the directory given by `--output`."""
    parser = ArgumentParser(description="Train the demo model.")
    parser.add_argument("--output", type=Path, required=True, help="directory to make")
    output: Path = parser.parse_args(arguments).output
    (write_readable_lines if sys.stderr.isatty() else write_json_lines)()
    transformers_logging.disable_progress_bar()
    train_demo_model(output)


if __name__ == "__main__":
    raise SystemExit(main())
