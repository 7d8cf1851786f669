"""vLLM's engine in a process of its own: requests come as JSON lines through a socket, and tokens go back the same way.

    python vllm_process.py <file descriptor of the socket>

This file is copied into a model repository beside `vllm_batcher.py`, which starts it, and stands alone: standard
library and vLLM. Triton's stub cannot hold the engine: vLLM starts processes by the interpreter's name, which the stub
is not, and an engine that dies must not take the served model with it.

The first line that comes holds the settings. Then come `{"submit": name, "prompt": [...], ...}` and
`{"cancel": name}`; `{"ready": {...}}` or `{"failed": why}` goes back once, then lines of `outputs`, each with the load
of the engine. The process ends when the other side closes the socket, or as soon as a process of the engine has died.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")

LONGEST_LINE = 64 * 2**20
SHUTDOWN_SECONDS = 1.0
PARENT_SECONDS, ORPHAN_SECONDS = 0.5, 5.0
ENGINE_PROCESS = b"VLLM::"
"""How the names begin that vLLM gives to its engine's process and to the workers of its GPUs."""

REFUSALS = frozenset({"ValueError", "VLLMClientError"})
"""What vLLM throws for a request that is wrong; the latter is its own since some version after 0.20."""

COMPLETE = "stop", "length"
"""Why a whole answer ends; vLLM also ends requests that it aborts or fails, with words of their own."""


@dataclass
class Load:
    """The load that the engine reported last.

    Attributes:
        cache_usage: Share of the KV cache that holds tokens of live requests, from 0 to 1.
        waiting: Requests in the scheduler's queue.
        preemptions: Requests that lost their place in the batch, ever.
        drafts: Steps of requests with speculated tokens, ever.
        accepted: Speculated tokens that were right, ever.
    """

    cache_usage: float = 0.0
    waiting: int = 0
    preemptions: int = 0
    drafts: int = 0
    accepted: int = 0


@dataclass
class Engine:
    """The engine and what is on its way to the other side."""

    llm: Any
    writer: asyncio.StreamWriter
    end_tokens: list[int]
    load: Load
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    outbox: list[list[Any]] = field(default_factory=list)

    def submit(self, line: dict[str, Any]) -> None:
        """Start a request as a task of its own."""
        name = line["submit"]
        self.tasks[name] = asyncio.create_task(self._generate(name, line))

    def cancel(self, name: str) -> None:
        """End a request; no more output of it is sent."""
        if task := self.tasks.pop(name, None):
            task.cancel()

    async def _generate(self, name: str, line: dict[str, Any]) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        prompt, likeliest, is_first = line["prompt"], line.get("logprobs"), True
        try:
            parameters = sampling(line, self.end_tokens)
            async for output in self.llm.generate({"prompt_token_ids": prompt}, parameters, name):
                (made,) = output.outputs
                reason = (made.finish_reason or "") if output.finished else ""
                error = f"vLLM ended it: {reason}" if reason not in ("", *COMPLETE) else ""
                if cannot_follow := reason == "error" and bool(
                    line.get("json_schema")
                ):  # the grammar let no token pass
                    error = "json_schema: no token of this model's tokenizer continues an answer that follows it"
                tokens = list(made.token_ids) if line["maximum_tokens"] else []
                scores = []
                if likeliest is not None:
                    if is_first and line.get("echo"):
                        scores = _scores(prompt, output.prompt_logprobs, likeliest)
                    scores += _scores(tokens, made.logprobs, likeliest)
                is_first = False
                self._add_output(name, tokens, "" if error else reason, error, is_refused=cannot_follow, scores=scores)
        except EngineDeadError:
            self.writer.close()  # ends the process: its parent starts it again
        except Exception as error:  # noqa: BLE001 - whatever vLLM throws is one request's failure
            is_refused = is_first and any(kind.__name__ in REFUSALS for kind in type(error).__mro__)
            self._add_output(name, [], error=str(error) if is_refused else f"{error!r}", is_refused=is_refused)
        finally:
            self.tasks.pop(name, None)

    def _add_output(
        self,
        name: str,
        tokens: list[int],
        finish_reason: str = "",
        error: str = "",
        *,
        is_refused: bool = False,
        scores: Sequence[Any] = (),
    ) -> None:
        if not self.outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self.outbox.append([name, tokens, finish_reason, error, is_refused, scores])

    def _flush(self) -> None:
        """Send what all requests got of a step in one line."""
        outputs, self.outbox = self.outbox, []
        line = {"outputs": outputs, "load": asdict(self.load)}
        self.writer.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")


def sampling(line: dict[str, Any], end_tokens: list[int]) -> Any:
    """What vLLM is asked for, greedily where the line has no temperature; raises ValueError for what cannot be."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    ignore_eos, schema, chosen = line.get("ignore_eos", False), line.get("json_schema"), line.get("sampling", {})
    if "seed" in chosen:
        chosen["seed"] %= 2**63  # to vLLM -1 is no seed
    asked = {"structured_outputs": StructuredOutputsParams(json=schema)} if schema else {}
    if line.get("logprobs") is not None:
        asked |= {"logprobs": line["logprobs"], "prompt_logprobs": line["logprobs"] if line.get("echo") else None}
    return SamplingParams(
        **{"temperature": 0.0, **chosen},
        **asked,
        max_tokens=max(1, line["maximum_tokens"]),  # it always generates one
        ignore_eos=ignore_eos,
        stop_token_ids=[] if ignore_eos else end_tokens,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def _scores(tokens: list[int], tables: Any, most: int) -> list[tuple[int, float | None, list[tuple[int, float]]]]:
    """Tokens with their logprobs, and the likeliest at their places with theirs, from vLLM's tables by token."""
    return [
        (
            token,
            table[token].logprob if table else None,
            [(one, told.logprob) for one, told in sorted((table or {}).items(), key=_rank) if told.rank <= most],
        )
        for token, table in zip(tokens, tables, strict=False)
    ]


def _rank(item: tuple[int, Any]) -> int:
    return int(item[1].rank)


def _load_logger(load: Load) -> type:
    """A logger class for vLLM, which calls it after each step."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class LoadLogger(StatLoggerBase):  # type: ignore[misc]  # vLLM is not here where types are checked
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            """Take vLLM's arguments; none is needed."""

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
            if scheduler_stats is not None:
                load.cache_usage = float(scheduler_stats.kv_cache_usage)
                load.waiting = int(scheduler_stats.num_waiting_reqs)
                if (speculation := getattr(scheduler_stats, "spec_decoding_stats", None)) is not None:
                    load.drafts += int(speculation.num_drafts)
                    load.accepted += int(speculation.num_accepted_tokens)
            if iteration_stats is not None:
                load.preemptions += int(iteration_stats.num_preempted_reqs)

        def log_engine_initialized(self) -> None:
            """Log nothing."""

    return LoadLogger


async def serve(channel: socket.socket) -> None:
    """Load the engine that the first line asks for, and serve until the other side is gone."""
    reader, writer = await asyncio.open_connection(sock=channel, limit=LONGEST_LINE)
    load = Load()
    try:
        from vllm import AsyncEngineArgs  # while the other side reads its tokenizer
        from vllm.v1.engine.async_llm import AsyncLLM

        settings = json.loads(await reader.readline())
        arguments = AsyncEngineArgs(**settings["arguments"], disable_log_stats=True)
        llm = AsyncLLM.from_engine_args(arguments, stat_loggers=[_load_logger(load)])
    except Exception as error:
        writer.write(json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode() + b"\n")
        await writer.drain()
        raise
    engine = Engine(llm, writer, settings["end_tokens"], load)
    gc.collect()
    stopping = threading.Event()
    threading.Thread(target=_end_with_engine, args=(stopping,), daemon=True).start()
    gc.freeze()  # a full collection of what is loaded takes a fifth of a second, and stops all streams
    try:
        writer.write(json.dumps({"ready": _facts(llm)}).encode() + b"\n")
        while line := await reader.readline():
            message = json.loads(line)
            if "submit" in message:
                engine.submit(message)
            else:
                engine.cancel(message["cancel"])
            await writer.drain()
    except ConnectionError:
        pass  # the other side is gone
    finally:
        stopping.set()
        with contextlib.suppress(Exception):  # it may be dead
            llm.shutdown(timeout=SHUTDOWN_SECONDS)


def _facts(llm: Any) -> dict[str, Any]:
    import vllm  # its distribution's name differs by device

    cache = llm.vllm_config.cache_config
    return {
        "vllm": vllm.__version__,
        "blocks": int(cache.num_gpu_blocks),
        "block_tokens": int(cache.block_size),
        "kv_cache_dtype": str(cache.cache_dtype),
        "quantization": str(llm.vllm_config.model_config.quantization or "none"),
    }


def _end_with_engine(stopping: threading.Event) -> None:
    """End this process group as soon as one of the engine's own ends: vLLM tells of a dead worker only seconds later.

    All of it: the engine's processes are forked, and each holds the socket that tells the other side of the end.
    """
    waiting, names = select.poll(), {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            pid, name = int(directory.name), (directory / "cmdline").read_bytes().partition(b"\0")[0]
            if name.startswith(ENGINE_PROCESS) and os.getpgid(pid) == os.getpgrp():
                descriptor = os.pidfd_open(pid)
                names[descriptor] = f"{name.decode(errors='replace')}, pid {pid}"
                waiting.register(descriptor, select.POLLIN)
    if not names:
        return
    ((ended, _), *_) = waiting.poll()
    if not stopping.is_set():
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        sys.stderr.write(f"{when} vLLM's engine is dead: its process {names[ended]}, has ended\n")
        sys.stderr.flush()
        os.killpg(0, signal.SIGKILL)


def _end_with(parent: int) -> None:
    """End this process group soon after its parent has ended, even if this process hangs."""
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    time.sleep(ORPHAN_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    asyncio.run(serve(socket.socket(fileno=int(sys.argv[1]))))
    os._exit(0)  # threads of libraries must not keep it
