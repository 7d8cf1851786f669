"""Train the demo model, really: `python -m llm_pipeline.demo.train --output DIR [--threads N] [--steps N] [--seed N]`.

A two-layer Llama (0.5 million parameters) learns the synthetic tasks in about a minute on a CPU, with Muon on
the layers' matrices and AdamW on the rest. It computes in FP32: many CPUs have no BF16 arithmetic and take four times
as long to imitate it. So small a model has none of the outlier channels that make 4-bit quantization of real models
hard, so after training some channels are rescaled: norm gains one way, the columns that read them the other way. That
changes no output (beyond rounding), and the log and the model card say so.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import torch
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from llm_pipeline.base.entry import ArgumentParser, entry_point
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.logging import get_logger, write_json_lines, write_readable_lines
from llm_pipeline.demo.tasks import TRAINING_WEIGHTS, Item, distinct, stream

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
    texts = (item.text for item in islice(stream(1, held_out=False, weights=TRAINING_WEIGHTS), _TRAINING_TEXTS))
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

## Held-out accuracy

One prompt in five was never trained on. Exact answers, on prompts of that fifth:

| task | accuracy |
|---|---|
{rows}

`training.json` holds the recipe, the seed and the training time.
"""

log = get_logger(__name__)

_COEFFICIENTS = (3.4445, -4.775, 2.0315)
_ITERATIONS = 5
_SMALLEST_NORM = 1e-7
IGNORED = -100
_HELD_OUT_SEED, _HELD_OUT_ITEMS = 5, 2000


def model_card(outlier_scale: float, parameters: int, held_out_accuracy: Mapping[str, float]) -> str:
    """The card as Markdown, with the metadata block that a hub reads."""
    rows = "\n".join(f"| {task} | {accuracy:.2%} |" for task, accuracy in held_out_accuracy.items())
    return _CARD.format(parameters=parameters, scale=outlier_scale, rows=rows)


class Muon(torch.optim.Optimizer):  # type: ignore[misc]  # mypy runs where there is no torch
    """Steps by orthogonalized Nesterov momentum, with weight decay.

    As `torch.optim.Muon` does it (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/), but in FP32:
    torch's multiplies in BF16, which takes four times as long on a CPU that has to imitate it.

    Args:
        matrices: Parameters of two dimensions.
        lr: Length of a step; a tall matrix takes one that is longer by the root of its ratio of sides.
        momentum: Share of the momentum that a step keeps.
        weight_decay: Share of a matrix that a step at a rate of one takes away.
    """

    def __init__(
        self, matrices: Iterable[torch.nn.Parameter], *, lr: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def step(self, closure: None = None) -> None:  # noqa: ARG002 - as in torch
        """Move every matrix that has a gradient."""
        with torch.no_grad():
            for group in self.param_groups:
                for matrix in group["params"]:
                    if (gradient := matrix.grad) is not None:
                        self._move(matrix, gradient, group["lr"], group["momentum"], group["weight_decay"])

    def _move(
        self, matrix: torch.nn.Parameter, gradient: torch.Tensor, rate: float, momentum: float, decay: float
    ) -> None:
        kept = self.state[matrix].setdefault("momentum", torch.zeros_like(gradient))
        kept.lerp_(gradient, 1 - momentum)
        direction = orthogonalized(gradient.lerp(kept, momentum))
        rows, columns = matrix.shape
        matrix.mul_(1 - rate * decay)
        matrix.add_(direction, alpha=-rate * max(1.0, rows / columns) ** 0.5)


def orthogonalized(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with its singular values between about 0.7 and 1.2, by Newton and Schulz's iteration."""
    first, second, third = _COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    wide = matrix.T if tall else matrix
    wide = wide / wide.norm().clamp(min=_SMALLEST_NORM)
    for _ in range(_ITERATIONS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=second, alpha=third), wide, beta=first)
    return wide.T if tall else wide


@dataclass(frozen=True)
class Training:
    """The recipe.

    Attributes:
        steps: Optimizer steps; the rate warms up over 50, is flat, and falls to nothing over the last 40 %.
        batch_size: Items a step.
        muon_rate: Learning rate of Muon, on the layers' matrices.
        adamw_rate: Learning rate of AdamW, on embeddings, norms and head.
        outlier_scale: Factor of the rescaled channels; 1.0 leaves them as they are.
        outlier_channels: Rescaled channels a norm, in each direction.
        threads: CPU threads.
    """

    steps: int = 700
    batch_size: int = 96
    muon_rate: float = 0.02
    adamw_rate: float = 3e-3
    outlier_scale: float = 10.0
    outlier_channels: int = 4
    seed: int = 0
    threads: int = 1
    progress_seconds: float = 5.0


@dataclass(frozen=True)
class TrainingReport:
    """The result of a training.

    Attributes:
        seconds: Wall time of the training loop.
        held_out_accuracy: Share of held-out items answered exactly, by task and over `all`.
    """

    training: Training
    parameters: int
    seconds: float
    held_out_accuracy: dict[str, float]


Batch = tuple[torch.Tensor, torch.Tensor]


def train_demo_model(output: Path, training: Training) -> TrainingReport:
    """Train, and write a complete fp16 checkpoint to `output`, which appears only when it is complete.

    Raises:
        ConfigError: `output` exists.
    """
    if output.exists():
        raise ConfigError("the output directory exists", where=str(output), hint="remove it, or name another")
    torch.set_num_threads(training.threads)
    torch.manual_seed(training.seed)
    tokenizer = train_tokenizer()
    model = LlamaForCausalLM(_architecture(len(tokenizer)))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    log.info("training the demo model", parameters=parameters, steps=training.steps, threads=training.threads)
    started = time.monotonic()
    _fit(model, tokenizer, training)
    seconds = time.monotonic() - started
    add_outliers(model, training.outlier_scale, training.outlier_channels)
    model.to(torch.float16)
    report = TrainingReport(training, parameters, round(seconds, 2), held_out_accuracy(model, tokenizer))
    _write(output, model, tokenizer, report)
    log.info("trained", accuracy=report.held_out_accuracy["all"], seconds=report.seconds, output=str(output))
    return report


def _architecture(vocabulary: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocabulary,
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


def _fit(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, training: Training) -> None:
    matrices = [parameter for parameter in model.model.layers.parameters() if parameter.ndim == 2]  # noqa: PLR2004
    chosen = {id(parameter) for parameter in matrices}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    optimizers: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=training.muon_rate, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(rest, lr=training.adamw_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, training.steps))
        for optimizer in optimizers
    ]
    model.train()
    started = reported = time.monotonic()
    items = stream(training.seed + 100, held_out=False, weights=TRAINING_WEIGHTS)
    for step in range(1, training.steps + 1):
        loss = _step(model, encode(tokenizer, list(islice(items, training.batch_size))), optimizers)
        for schedule in schedules:
            schedule.step()
        if (now := time.monotonic()) - reported >= training.progress_seconds:
            reported = now
            remaining = (now - started) / step * (training.steps - step)
            log.info("training", step=f"{step}/{training.steps}", loss=round(loss, 4), eta_seconds=round(remaining))
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


def _step(model: LlamaForCausalLM, batch: Batch, optimizers: Sequence[torch.optim.Optimizer]) -> float:
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


def held_out_accuracy(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> dict[str, float]:
    """Share of held-out items whose every answer token is the likeliest one, by task and over `all`."""
    items = list(islice(distinct(stream(_HELD_OUT_SEED, held_out=True)), _HELD_OUT_ITEMS))
    right: dict[str, list[bool]] = {"all": []}
    for start in range(0, len(items), 250):
        chunk = items[start : start + 250]
        tokens, labels = encode(tokenizer, chunk)
        with torch.no_grad():
            guesses = model(input_ids=tokens).logits[:, :-1].argmax(-1)
        good = ((guesses == labels[:, 1:]) | (labels[:, 1:] == IGNORED)).all(dim=1)
        for item, is_right in zip(chunk, good.tolist(), strict=True):
            right["all"].append(is_right)
            right.setdefault(item.task, []).append(is_right)
    return {task: round(sum(answers) / len(answers), 4) for task, answers in sorted(right.items())}


def _write(output: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, report: TrainingReport) -> None:
    partial = output.with_name(f".{output.name}.partial-{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        model.generation_config = GenerationConfig(bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD)
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        facts = json.dumps(asdict(report), indent=2) + "\n"
        (partial / "training.json").write_text(facts, encoding="utf-8")
        card = model_card(report.training.outlier_scale, report.parameters, report.held_out_accuracy)
        (partial / "README.md").write_text(card, encoding="utf-8")
        partial.rename(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@entry_point
def main(arguments: Sequence[str] | None = None) -> None:
    """Train the demo model into the directory given by `--output`."""
    parser = ArgumentParser(description="Train the demo model.")
    parser.add_argument("--output", type=Path, required=True, help="directory to make")
    parser.add_argument("--threads", type=int, default=Training.threads)
    parser.add_argument("--steps", type=int, default=Training.steps)
    parser.add_argument("--seed", type=int, default=Training.seed)
    options = parser.parse_args(arguments)
    (write_readable_lines if sys.stderr.isatty() else write_json_lines)()
    transformers_logging.disable_progress_bar()
    train_demo_model(options.output, Training(steps=options.steps, seed=options.seed, threads=options.threads))


if __name__ == "__main__":
    raise SystemExit(main())
