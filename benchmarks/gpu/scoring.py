"""Four-choice items scored by lm-eval's `vllm` class beside its `hf` class: same checkpoint, items and GPU.

    python -m benchmarks.gpu.scoring --work WORK   # the shapes of Llama-3-8B, bfloat16

Run it with an interpreter that has vLLM and lm-eval, without `TQDM_DISABLE`, by which vLLM divides by zero.
The weights are random, but for an answer that the model knows by a wide margin: its last word again. Each way to score
is a process of its own. `cached` is lm-eval's class with vLLM's prefix cache: contexts are computed first, and the
choices, of which only the tokens' own log-probabilities are asked for, read them from the cache, which vLLM does not do
by itself. One line a goal; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable
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
    parser.add_argument("--items", type=int, default=_ITEMS)
    parser.add_argument("--choice-words", type=int, default=_CHOICE_WORDS, help="tokens of each choice")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes, to try the script")
    parser.add_argument("--way", choices=("hf", "vllm", "cached"), help=argparse.SUPPRESS)
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
    if not options.model.is_dir():
        from benchmarks.gpu.llama_8b import LLAMA_3_8B, SMOKE, write_checkpoint

        write_checkpoint(options.model, SMOKE if options.smoke else LLAMA_3_8B)
    options.output.write_text(json.dumps(_evaluate(options)), encoding="utf-8")


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
            contexts = sorted({tuple(context) for _, context, _ in requests})
            prompts = [context + continuation for _, context, continuation in requests]
            started = time.monotonic()
            self._asked(map(list, contexts), SamplingParams(max_tokens=1, detokenize=False))
            computed = time.monotonic()
            outputs = self._asked(prompts, self._own_logprobs(cached=True))
            late = [
                number
                for number, (output, (_, context, _)) in enumerate(zip(outputs, requests, strict=True))
                if (output.num_cached_tokens or 0) >= len(context)  # it was asked before, word for word
            ]
            again = self._asked((prompts[number] for number in late), self._own_logprobs(cached=False))
            for number, output in zip(late, again, strict=True):
                outputs[number] = output
            asked = time.monotonic()
            answers = [
                self._likelihood(output.prompt_logprobs, prompt, len(context))
                for output, prompt, (_, context, _) in zip(outputs, prompts, requests, strict=True)
            ]
            seconds = {"contexts": computed - started, "choices": asked - computed, "read": time.monotonic() - asked}
            print(f"{seconds}, asked again: {len(late)} of {len(prompts)}", flush=True)
            return answers

        def _asked(self, prompts: Iterable[list[int]], parameters: Any) -> Any:
            asked = [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]
            return self.model.generate(asked, parameters, use_tqdm=False) if asked else []

        def _own_logprobs(self, *, cached: bool) -> Any:
            return SamplingParams(
                temperature=0, prompt_logprobs=0, max_tokens=1, detokenize=False, flat_logprobs=True,
                skip_reading_prefix_cache=not cached,
            )  # fmt: skip

        def _likelihood(self, logprobs: Any, prompt: list[int], context: int) -> tuple[float, bool]:
            """Of what follows the context: its log-probability, and whether it is the likeliest."""
            own = [logprobs[number][prompt[number]] for number in range(context, len(prompt))]
            return sum(one.logprob for one in own), all(one.rank == 1 for one in own)

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


if __name__ == "__main__":
    sys.exit(main())
