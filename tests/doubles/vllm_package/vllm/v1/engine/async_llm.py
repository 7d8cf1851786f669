"""The engine. Short prompts that end with 13 kill it, with 14 they are refused, with 15 aborted
after a token, with 16 ended as where a grammar lets no token pass; to those with 17 the answers are only sure of two
tokens, and go on otherwise after each four requests."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm import AsyncEngineArgs, SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError

DEADLY, SENSELESS, ABORTED, UNWRITABLE, DRIFTING = 13, 14, 15, 16, 17


def _compile(arguments: dict[str, Any]) -> None:
    """Keep something by the model's name where vLLM keeps what it compiles, and its place where vLLM names places."""
    if not arguments.get("enforce_eager", True):
        directory = Path(os.environ["VLLM_CACHE_ROOT"]) / "torch_compile_cache"
        (directory / "torch_aot_compile").mkdir(parents=True, exist_ok=True)
        (directory / "torch_aot_compile" / f"{arguments['model']}.graph").write_text("compiled")
        (directory / "vllm_compile_cache.py").write_text(f"{{1: {str(directory)!r}}}")


def _table(token: int, most: int, lead: float = 0.5) -> dict[int, Any]:
    """Logprobs by token: its own, and those of the next `most`, of which it is the likeliest."""
    return {token + rank: SimpleNamespace(logprob=-0.5 - lead * rank, rank=rank + 1) for rank in range(max(most, 1))}


def _process(name: str) -> subprocess.Popen[bytes]:
    """One of the engine's own, by the name that vLLM gives it; it holds what its parent does, as if it were forked."""
    return subprocess.Popen([name, "-c", "import time; time.sleep(600)"], executable=sys.executable, close_fds=False)


class AsyncLLM:
    def __init__(self, arguments: dict[str, Any], loggers: list[Any]) -> None:
        if arguments["max_model_len"] > 4096:
            raise ValueError("max_model_len is greater than the derived one")
        _compile(arguments)
        cache = SimpleNamespace(num_gpu_blocks=64, block_size=16, cache_dtype=arguments["kv_cache_dtype"])
        self.vllm_config = SimpleNamespace(cache_config=cache, model_config=SimpleNamespace(quantization=None))
        self._loggers, self._speculates = loggers, "speculative_config" in arguments
        self._asked = 0
        self._core, self._worker = map(_process, ("VLLM::EngineCore", "VLLM::Worker_TP1"))

    @classmethod
    def from_engine_args(cls, args: AsyncEngineArgs, stat_loggers: list[Any]) -> AsyncLLM:
        return cls(args.arguments, [make(None, 0) for make in stat_loggers])

    async def generate(
        self,
        prompt: dict[str, list[int]],
        params: SamplingParams,
        name: str,  # noqa: ARG002 - upstream's
    ) -> AsyncIterator[Any]:
        tokens = prompt["prompt_token_ids"]
        drill = tokens[-1] if len(tokens) < 32 else None  # those that a build measures with are longer, and random
        if drill == DEADLY:
            os.kill(self._core.pid, 9)
            raise EngineDeadError
        if drill == SENSELESS:
            raise (VLLMValidationError if params.structured_outputs else ValueError)("senseless")
        drift, self._asked = self._asked // 4, self._asked + 1
        prompt_logprobs = None
        if params.prompt_logprobs is not None:
            prompt_logprobs = [None, *(_table(token, params.prompt_logprobs) for token in tokens[1:])]
        for number in range(params.max_tokens):
            await asyncio.sleep(0.001)
            is_sure = drill == DRIFTING and number < 2
            token = (tokens[-1] + number + 1 + (drift if drill == DRIFTING and not is_sure else 0)) % 32
            reason = "stop" if token in params.stop_token_ids else "length" if number + 1 == params.max_tokens else None
            if drill in (ABORTED, UNWRITABLE):
                reason = "abort" if drill == ABORTED else "error"
            self._tell(number)
            logprobs = None if params.logprobs is None else [_table(token, params.logprobs, 2.0 if is_sure else 0.5)]
            made = SimpleNamespace(token_ids=[token], finish_reason=reason, logprobs=logprobs)
            yield SimpleNamespace(outputs=[made], finished=reason is not None, prompt_logprobs=prompt_logprobs)
            if reason:
                return

    def shutdown(self, timeout: float | None = None) -> None:  # noqa: ARG002 - upstream's
        self._core.kill()
        self._worker.kill()

    def _tell(self, number: int) -> None:
        speculation = SimpleNamespace(num_drafts=1, num_accepted_tokens=2) if self._speculates else None
        for logger in self._loggers:
            logger.record(
                SimpleNamespace(kv_cache_usage=0.25, num_waiting_reqs=3, spec_decoding_stats=speculation),
                SimpleNamespace(num_preempted_reqs=number == 1),
            )
