"""Train a small Llama on a GPU for about two minutes, then put it through every format, its accuracy gate included.

    python -m benchmarks.gpu.trained

Random weights say nothing about accuracy; these were trained, and nothing was done to them since: what a format loses
here, it lost on real weights. Prints a table; exit code 1 when a goal is missed. See FIGURES.md for what is needed.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from benchmarks.goals import at_least, goal
from benchmarks.gpu import trained_tasks
from benchmarks.gpu.processes import start_compilers, wait_for
from benchmarks.quantized_table import Attempt, Model, format_table
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.config.quantization import CALIBRATED, QuantizationRecipe
from llm_pipeline.config.release import Evaluation
from llm_pipeline.demo.tokenizer import BOS, EOS, PAD
from llm_pipeline.demo.train import IGNORED, encode, learning_rate

BASELINE_ACCURACY = 0.7
"""A model that learned less than that could hardly show a loss."""

FORMATS = (
    *("fp8", "fp8_per_channel_token", "fp8_block", "int8_smoothquant", "int8_weight_only"),
    *("int4_blockwise", "int4_awq", "w4a8_awq", "nvfp4", "nvfp4_awq", "mxfp4", "auto"),
)
SEARCH = {"formats": ["int4_blockwise", "fp8"], "effective_bits": [5.5, 6.5], "score_samples": 64}
CALIBRATION = {"sources": ["calibration.jsonl"], "samples": 256, "maximum_tokens": 64}


def main() -> int:
    """Train, quantize, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1400)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--items", type=int, nargs=2, default=(4000, 2000), help="of choice, to generate")
    parser.add_argument("--formats", nargs="*", default=FORMATS)
    parser.add_argument("--work", type=Path, help="directory for everything that is written")
    options = parser.parse_args()
    _be_quiet()
    with tempfile.TemporaryDirectory(prefix="trained-", dir=options.work) as temporary:
        place = Path(temporary)
        os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(place / "extensions"))
        compilers = start_compilers()
        trained_tasks.write_tasks(place / "tasks", *options.items)
        trained_tasks.write_calibration(place / "calibration.jsonl", 512)
        train(place / "model", options.steps, options.layers, options.hidden)
        wait_for(compilers)
        tasks = ("trained_choice", "trained_generate")
        evaluation = Evaluation(tasks=tasks, served_tasks=tasks[1:], maximum_length=256)
        policy = AccuracyPolicy(method="fixed", minimum_items=min(1000, sum(options.items)))
        model = Model(place, place / "model", place / "tasks", evaluation, "bfloat16")
        attempts = []
        for recipe in (recipe for name in options.formats for recipe in _recipes(name)):
            attempts.append(model.attempt(recipe, [place / "calibration.jsonl"], policy))
            print(f"{recipe.name}: {attempts[-1].verdict or 'failed'}, {attempts[-1].seconds:.1f} s", flush=True)
    print(f"\nbaseline: {model.accuracy:.2%} of {len(model.items)} held-out items")
    print(format_table(attempts, policy.confidence))
    return 0 if all([*_goals(model.accuracy, attempts)]) else 1


def _be_quiet() -> None:
    logging.basicConfig(level=logging.WARNING)
    transformers_logging.disable_progress_bar()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _recipes(name: str) -> tuple[QuantizationRecipe, ...]:
    search = {"search": SEARCH} if name == "auto" else {}
    calibration = {"calibration": CALIBRATION} if name in CALIBRATED else {}
    return QuantizationRecipe.model_validate({"name": name, "weights": name, **search, **calibration}).rungs()


def _goals(baseline: float, attempts: Sequence[Attempt]) -> Iterator[bool]:
    yield at_least("baseline_accuracy", baseline, BASELINE_ACCURACY)
    done = {attempt.recipe.name: attempt.verdict for attempt in attempts}
    for name in ("fp8", "int8_smoothquant"):
        if name in done:
            yield goal(f"{name}_verdict", str(done[name]), Verdict.GO, met=done[name] is Verdict.GO)
    failed = [attempt.recipe.name for attempt in attempts if attempt.verdict is None]
    yield goal("formats_without_a_verdict", ", ".join(failed) or "none", "none", met=not failed)


class _Batches(Dataset[tuple[torch.Tensor, torch.Tensor]]):  # type: ignore[misc]  # torch is untyped here
    """Batches by number: drawn, tokenized and padded by the loader's workers."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, steps: int, size: int) -> None:
        self._tokenizer, self._steps, self._size = tokenizer, steps, size

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        if step >= self._steps:
            raise IndexError(step)
        return encode(self._tokenizer, trained_tasks.batch(1000 + step, self._size))


def train(output: Path, steps: int, layers: int, hidden: int, batch_size: int = 512) -> None:
    """Train with Muon on the layers' matrices and AdamW on the rest, as the demo does, and write a checkpoint."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    tokenizer = _tokenizer()
    model = LlamaForCausalLM(_architecture(len(tokenizer), layers, hidden)).to(device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    matrices = [parameter for parameter in model.model.layers.parameters() if parameter.ndim == 2]
    chosen = {id(parameter) for parameter in matrices}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=0.02, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(rest, lr=1e-3, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(each, lambda step: learning_rate(step, steps)) for each in optimizers
    ]
    batches = DataLoader(_Batches(tokenizer, steps, batch_size), batch_size=None, num_workers=os.cpu_count() or 1)
    begun = time.perf_counter()
    for step, (tokens, labels) in enumerate(batches, start=1):
        answered = labels[:, 1:] != IGNORED
        with torch.autocast(device, torch.bfloat16):
            states = model.model(input_ids=tokens.to(device, non_blocking=True), use_cache=False).last_hidden_state
            logits = model.lm_head(states[:, :-1][answered.to(device)])
        loss = functional.cross_entropy(logits.float(), labels[:, 1:][answered].to(device))
        loss.backward()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
        if step % max(1, steps // 8) == 0:
            print(f"step {step}/{steps}: loss {loss.item():.4f}, {time.perf_counter() - begun:.0f} s", flush=True)
    model.to(torch.bfloat16).generation_config = GenerationConfig(bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    print(f"trained: {parameters / 1e6:.1f} million parameters, {time.perf_counter() - begun:.0f} s", flush=True)


def _architecture(vocabulary: int, layers: int, hidden: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64 // 3 or 1,
        max_position_embeddings=256,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        tie_word_embeddings=False,
    )


def _tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE that keeps each digit a token of its own."""
    special = ["<s>", "</s>", "<pad>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (item.text for item in islice(trained_tasks.stream(1, held_out=False), 20_000))
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", BOS)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=special[BOS],
        eos_token=special[EOS],
        pad_token=special[PAD],
        model_max_length=256,
        clean_up_tokenization_spaces=False,
    )


if __name__ == "__main__":
    sys.exit(main())
