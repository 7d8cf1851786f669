"""Four-choice items scored by lm-eval's `vllm` class beside its `hf` class: same checkpoint, items and GPU.

    python -m benchmarks.gpu.scoring --work /tmp/scoring            # the shapes of Llama-3-8B, bfloat16
    python -m benchmarks.gpu.scoring --work /tmp/scoring --mixture  # a mixture of experts beside modelopt's FP8 export

Run it with an interpreter that has vLLM, lm-eval and modelopt, without `TQDM_DISABLE`, by which vLLM divides by zero.
The weights are random, but for an answer that the model knows by a wide margin: its last word again. Each way to score
is a process of its own. `cached` is lm-eval's class with the prefix cache, which vLLM does not read by itself where
log-probabilities of a prompt are asked for. One line a goal; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.goals import at_least, at_most

_WORDS, _ITEMS, _CHOICE_WORDS = 240, 1000, 8
_FASTER, _DIFFERENT = 4.0, 0.02


def main() -> int:
    """Score in every way, each in its own process, and compare."""
    options = _parse()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.way:
        _score(options)
        sys.stdout.flush()
        os._exit(0)  # threads that vLLM leaves behind end its process with SIGABRT
    if options.mixture:
        made = _in_a_process(options, "make", options.work / "mixture", "-")
        print(f"made, quantized and exported: {made}", flush=True)
        names = ("mixture", "mixture-fp8")
        before, after = (_in_a_process(options, "vllm", options.work / name, name)["items"] for name in names)
        lost = sum(one["right"] and not other["right"] for one, other in zip(before, after, strict=True))
        return 0 if at_most("mixture_fp8_lost_items", lost, 0.01 * options.items, "items") else 1
    seen = {way: _in_a_process(options, way, options.model, way) for way in ("hf", "vllm", "cached")}
    met = []
    for way in ("vllm", "cached"):
        mine, theirs = seen[way], seen["hf"]
        for part in ("score_seconds", "whole_seconds"):
            print(f"{way} {part}: {theirs[part]:.1f} / {mine[part]:.1f} = {theirs[part] / mine[part]:.2f}", flush=True)
        pairs = list(zip(theirs["items"], mine["items"], strict=True))
        differ = sum(one["chosen"] != other["chosen"] for one, other in pairs) / len(pairs)
        met.append(at_most(f"scoring_other_choice ({way})", differ, _DIFFERENT, ""))
    faster = seen["hf"]["score_seconds"] / seen["cached"]["score_seconds"]
    met.append(at_least("scoring_faster (cached)", faster, _FASTER, "x"))
    return 0 if all(met) else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="directory for everything that is written")
    parser.add_argument("--model", type=Path, help="a checkpoint of `llama_8b`; made if there is none")
    parser.add_argument("--mixture", action="store_true", help="FP8 of a mixture of experts beside itself")
    parser.add_argument("--items", type=int, default=_ITEMS)
    parser.add_argument("--choice-words", type=int, default=_CHOICE_WORDS, help="tokens of each choice")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes, to try the script")
    parser.add_argument("--way", choices=("hf", "vllm", "cached", "make"), help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.work = options.work.absolute()
    options.model = options.model or options.work / "model"
    return options


def _in_a_process(options: argparse.Namespace, way: str, model: Path, name: str) -> dict[str, Any]:
    output = options.work / f"{way}-{name}-{options.choice_words}.json"
    command = [sys.executable, "-m", "benchmarks.gpu.scoring", "--work", options.work, "--way", way, "--model", model]
    command += ["--output", output, "--items", str(options.items), "--choice-words", str(options.choice_words)]
    command += ["--smoke"] if options.smoke else []
    started = time.monotonic()
    subprocess.run(command, check=True)
    told: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    told["whole_seconds"] = time.monotonic() - started
    output.write_text(json.dumps(told), encoding="utf-8")
    print(f"{way} {name}: { ({key: value for key, value in told.items() if key != 'items'}) }", flush=True)
    return told


def _score(options: argparse.Namespace) -> None:
    if options.way == "make":
        told = _make_mixture(options.model, smoke=options.smoke)
    else:
        if not options.model.is_dir():
            from benchmarks.gpu.llama_8b import LLAMA_3_8B, SMOKE, write_checkpoint

            write_checkpoint(options.model, SMOKE if options.smoke else LLAMA_3_8B)
        told = _evaluate(options)
    options.output.write_text(json.dumps(told), encoding="utf-8")


def _evaluate(options: argparse.Namespace) -> dict[str, Any]:
    from lm_eval import simple_evaluate

    started = time.monotonic()
    model = _language_model(options.way, str(options.model))
    loaded = time.monotonic()
    answer = simple_evaluate(model=model, tasks=[_task(options)], log_samples=True, bootstrap_iters=0)
    ended = time.monotonic()
    samples = sorted(answer["samples"]["four_choices"], key=lambda sample: sample["doc_id"])
    scores = [[score for score, _ in sample["filtered_resps"]] for sample in samples]
    items = [
        {"scores": own, "chosen": own.index(max(own)), "right": bool(sample["acc"])}
        for own, sample in zip(scores, samples, strict=True)
    ]
    accuracy = sum(item["right"] for item in items) / len(items)
    return {"load_seconds": loaded - started, "score_seconds": ended - loaded, "accuracy": accuracy, "items": items}


def _language_model(way: str, model: str) -> Any:
    if way == "hf":
        import torch
        from lm_eval.models.huggingface import HFLM

        device = "cuda" if torch.cuda.is_available() else "cpu"
        return HFLM(pretrained=model, dtype="bfloat16", batch_size=32, max_length=1024, device=device)
    from lm_eval.models.vllm_causallms import VLLM

    made = VLLM if way == "vllm" else _reading_the_cache(VLLM)
    return made(
        pretrained=model, dtype="bfloat16", max_model_len=1024, gpu_memory_utilization=0.8, enable_prefix_caching=True,
        enforce_eager=True,
    )  # fmt: skip


def _reading_the_cache(base: Any) -> Any:
    from vllm import SamplingParams, TokensPrompt

    class Cached(base):  # type: ignore[misc]  # neither lm-eval nor vLLM is here where types are checked
        """A context is computed once for all that follow it: of its own log-probabilities none is needed."""

        def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False) -> Any:  # noqa: ARG002
            prompts = [context + continuation for _, context, continuation in requests]
            order = sorted(range(len(prompts)), key=prompts.__getitem__)  # one context after the other
            outputs = dict(zip(order, self._asked([prompts[number] for number in order], cached=True), strict=True))
            late = [n for n, output in outputs.items() if (output.num_cached_tokens or 0) >= len(requests[n][1])]
            again = self._asked(
                [prompts[number] for number in late], cached=False
            )  # it was asked before, word for word
            outputs.update(zip(late, again, strict=True))
            print(f"asked again: {len(late)} of {len(prompts)}", flush=True)
            return [
                self._parse_logprobs(tokens=prompt, outputs=outputs[number], ctxlen=len(requests[number][1]))
                for number, prompt in enumerate(prompts)
            ]

        def _asked(self, prompts: list[list[int]], *, cached: bool) -> Any:
            parameters = SamplingParams(
                temperature=0, prompt_logprobs=1, max_tokens=1, detokenize=False, skip_reading_prefix_cache=not cached
            )
            asked = [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]
            return self.model.generate(asked, parameters, use_tqdm=False)

    return Cached


def _task(options: argparse.Namespace) -> dict[str, Any]:
    draw = random.Random(7)  # noqa: S311 - synthetic data, nothing secret
    words = [f"w{number}" for number in range(4000)]
    rows = []
    for _ in range(options.items):
        text = draw.choices(words, k=_WORDS)
        choices = [" ".join(draw.choices(words, k=options.choice_words)) for _ in range(3)]
        right = draw.randrange(4)
        choices.insert(right, " ".join(text[-1:] * options.choice_words))
        rows.append({"text": " ".join(text), "choices": choices, "right": right})
    data = options.work / f"four_choices-{options.choice_words}-{os.getpid()}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {
        "task": "four_choices",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "text",
        "doc_to_choice": "choices",
        "doc_to_target": "right",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }


def _make_mixture(directory: Path, *, smoke: bool) -> dict[str, Any]:
    """Layers of Qwen3-30B-A3B with random weights, 12 of its 48, and modelopt's FP8 export of them beside it."""
    import modelopt.torch.quantization as mtq
    import torch
    from modelopt.torch.export import export_hf_checkpoint
    from transformers import GenerationConfig, Qwen3MoeConfig, Qwen3MoeForCausalLM

    from benchmarks.gpu.llama_8b import word_tokenizer

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    width, layers, experts, vocabulary = (64, 2, 8, 4096) if smoke else (2048, 12, 128, 128_256)
    config = Qwen3MoeConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_experts=experts,
        num_experts_per_tok=2 if smoke else 8,
        moe_intermediate_size=width * 3 // 8,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        vocab_size=vocabulary,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        norm_topk_prob=True,
        dtype="bfloat16",
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = Qwen3MoeForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(1e-4)
            layer.mlp.experts.down_proj.mul_(1e-4)
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1, pad_token_id=2)
    model.save_pretrained(directory, max_shard_size="4GB")
    tokenizer = word_tokenizer(vocabulary)
    tokenizer.save_pretrained(directory)

    def calibrate(asked: Any) -> None:
        for _ in range(16):
            asked(torch.randint(4, 4000, (8, 256), device=device))

    started = time.monotonic()
    mtq.quantize(model, mtq.FP8_DEFAULT_CFG, calibrate)
    quantized = time.monotonic()
    export = directory.with_name(f"{directory.name}-fp8")
    with torch.inference_mode():
        export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=export)
    tokenizer.save_pretrained(export)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    seconds = {"quantize_seconds": quantized - started, "export_seconds": time.monotonic() - quantized}
    sizes = {path.name: sum(file.stat().st_size for file in path.glob("*.safetensors")) for path in (directory, export)}
    return {"parameters": parameters, **seconds, "bytes": sizes, "items": []}


if __name__ == "__main__":
    sys.exit(main())
