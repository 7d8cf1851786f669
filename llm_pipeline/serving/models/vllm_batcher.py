"""A checkpoint that generates in flight, by vLLM in a process of its own.

This file is copied into a model repository beside `llm/1/model.py` and `vllm_process.py`, and the
engine builder measures with it: what was measured is what serves. It stands alone: standard library and Transformers'
tokenizers.

    batcher = Batcher(checkpoint, Settings.of(properties, limits, end_tokens=rules.end_tokens))
    batcher.submit("1", prompt, maximum_tokens=16)
    for output in batcher.outputs(timeout_seconds=0.1): ...

vLLM queues what its KV cache has no room for, so a request may be submitted at any time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROCESS_FILE = "vllm_process.py"
COMPILED_DIRECTORY = "compiled"
"""Beside `engine.json`: what vLLM compiled for this model and GPU, and finds again."""

STOP_SECONDS = 3.0
"""Triton ends the stub five seconds after it asks it to stop."""

POLL_SECONDS = 0.02
NO_CONFIGURATION = "/nonexistent"
DEFAULT_CUDA_HOME = "/usr/local/cuda"


@dataclass(frozen=True)
class Settings:
    """How a checkpoint is loaded and batched.

    Attributes:
        arguments: vLLM's engine arguments, but for the model.
        compiled: Directory of what vLLM compiled before; None for none.
        workspace: Where vLLM keeps what it compiles; None for a place in the home directory.
        end_tokens: What ends an answer.
        threads: That compute, on a CPU; None on a GPU.
    """

    arguments: Mapping[str, Any]
    compiled: Path | None = None
    workspace: Path | None = None
    end_tokens: Sequence[int] = ()
    threads: str | None = None

    @staticmethod
    def of(
        properties: Mapping[str, str],
        limits: Mapping[str, int],
        engine: Path | None = None,
        *,
        end_tokens: Sequence[int] = (),
    ) -> Settings:
        """From the runtime properties and the end tokens of `engine.json`, the engine's limits, and its directory."""
        arguments = json.loads(properties["arguments"])
        arguments |= {
            "max_num_seqs": limits["maximum_sequences"],
            "max_model_len": limits["maximum_tokens_per_request"],
            "max_num_batched_tokens": limits["maximum_batched_tokens"],
        }
        if limits["kv_cache_blocks"]:
            arguments["num_gpu_blocks_override"] = limits["kv_cache_blocks"]
        compiled = engine / COMPILED_DIRECTORY if engine else None
        found = compiled if compiled and compiled.is_dir() else None
        return Settings(arguments, found, end_tokens=end_tokens, threads=properties.get("threads"))


@dataclass(frozen=True)
class Output:
    """What one request generated since it was last asked for.

    Attributes:
        name: The request's.
        tokens: New ones.
        finish_reason: `stop` or `length` with the last one, empty before.
        error: Why it failed; empty when it did not.
        is_refused: vLLM did not take it.
        scores: Where logprobs were asked for, of each new token, before them of the prompt's: itself, its logprob, and
            the likeliest tokens at its place with theirs.
    """

    name: str
    tokens: list[int]
    finish_reason: str = ""
    error: str = ""
    is_refused: bool = False
    scores: list[tuple[int, float | None, list[tuple[int, float]]]] = field(default_factory=list)


class Batcher:
    """vLLM's process, and the thread that reads what it sends.

    Attributes:
        tokenizer: The checkpoint's.
        facts: Version, blocks of the KV cache, and how the weights were read, as the engine reported them.
        load: What it reported last: `Load` of its process.
        is_running: The engine is alive.
    """

    def __init__(self, checkpoint: Path, settings: Settings) -> None:
        """Load.

        Raises:
            RuntimeError: vLLM does not start; its log says why.
        """
        self._checkpoint, self._settings = checkpoint.absolute(), settings
        self._process: subprocess.Popen[bytes] | None = None
        self.tokenizer: Any = None
        self.start()

    def start(self) -> None:
        """Start with an empty cache; also after a failure."""
        self.stop()
        self._spawn()
        try:
            if self.tokenizer is None:
                from transformers import AutoTokenizer  # while vLLM is imported by its own process, which takes longer

                where = self._checkpoint
                self.tokenizer = AutoTokenizer.from_pretrained(where, local_files_only=True, trust_remote_code=False)
            self._load()
        except BaseException:
            self.stop()
            raise

    def _spawn(self) -> None:
        """Start the process, which waits for its settings.

        It has a process group of its own: what ends the server's group must not end it before the served model has
        answered its requests, and what is left of an engine that died is found by the group.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [_python(), str(Path(__file__).with_name(PROCESS_FILE)), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | self._places(),
                cwd=self._checkpoint.parent,  # vLLM finds what it compiled before by the model's name, too
                process_group=0,
            )
        self._channel, self._lines = ours, ours.makefile("rb")

    def _load(self) -> None:
        self.load: dict[str, Any] = {"cache_usage": 0.0, "waiting": 0}
        self._live = set[str]()
        self._outbox: queue.SimpleQueue[list[Output]] = queue.SimpleQueue()
        self._sending = threading.Lock()
        arguments = {**self._settings.arguments, "model": self._checkpoint.name}
        self._send({"arguments": arguments, "end_tokens": list(self._settings.end_tokens)})
        first = _first(self._lines)
        if "ready" not in first:
            raise RuntimeError(f"vLLM did not start: {first.get('failed', 'its process ended, and its log says why')}")
        self.facts: dict[str, Any] = first["ready"]
        self.is_running = True
        threading.Thread(target=self._read, args=(self._lines, self._outbox), name="vllm", daemon=True).start()

    @property
    def blocks(self) -> int:
        """Number of blocks of the KV cache."""
        return int(self.facts["blocks"])

    def fits(self, tokens: int) -> bool:
        """Whether an empty cache could hold a prompt and its answer."""
        return tokens <= self.blocks * int(self.facts["block_tokens"])

    def submit(self, name: str, prompt: list[int], maximum_tokens: int, **options: Any) -> None:
        """Start a request; vLLM queues it if the batch is full.

        Args:
            name: Of its outputs.
            prompt: Tokens.
            maximum_tokens: Of the answer.
            options: What `vllm_process.sampling` reads beside these.
        """
        self._live.add(name)
        self._send({"submit": name, "prompt": prompt, "maximum_tokens": maximum_tokens, **options})

    def cancel(self, name: str) -> None:
        """End a request; no more output of it is returned."""
        if name in self._live:
            self._live.discard(name)
            self._send({"cancel": name})

    def wake(self) -> None:
        """Make a waiting `outputs` return at once."""
        self._outbox.put([])

    def outputs(self, timeout_seconds: float) -> list[Output]:
        """Output since the last call, waiting for the first of it; empty at the time limit."""
        collected: dict[str, Output] = {}
        for output in self._received(timeout_seconds):
            if output.name not in self._live:
                continue
            if earlier := collected.get(output.name):
                tokens, scores = earlier.tokens + output.tokens, earlier.scores + output.scores
                output = dataclasses.replace(output, tokens=tokens, scores=scores)  # noqa: PLW2901 - all of them
            collected[output.name] = output
            if output.finish_reason or output.error:
                self._live.discard(output.name)
        return list(collected.values())

    def stop(self) -> None:
        """End the engine and every process of it: they hold the GPU's memory."""
        if self._process is None:
            return
        self.is_running = False
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)  # closing it is not enough: the reader holds it, too
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        deadline = time.monotonic() + STOP_SECONDS
        while _signal(self._process.pid) and time.monotonic() < deadline:
            self._process.poll()
            time.sleep(POLL_SECONDS)
        self._process = None

    def _received(self, timeout_seconds: float) -> Iterator[Output]:
        with contextlib.suppress(queue.Empty):
            yield from self._outbox.get(timeout=timeout_seconds)
            while True:
                yield from self._outbox.get_nowait()

    def _read(self, lines: Any, outbox: queue.SimpleQueue[list[Output]]) -> None:
        try:
            for line in lines:
                message = json.loads(line)
                self.load = message["load"]
                outbox.put([Output(*output) for output in message["outputs"]])
        except (OSError, ValueError):
            pass  # it was stopped, or ended in the middle of a line
        if outbox is self._outbox:
            self.is_running = False
            outbox.put([])

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            with self._sending:
                self._channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.is_running = False  # the reader finds out, too

    def _places(self) -> dict[str, str]:
        """Where vLLM and its compilers keep what they compile, with what the build compiled already in it."""
        workspace = self._settings.workspace or Path.home() / ".cache"
        vllm, own, temporary = workspace / "vllm", {}, tempfile.gettempdir()
        if self._settings.workspace:  # a server has a home and a place for temporary files of its own
            own = {"HOME": str(workspace), "TMPDIR": str(workspace / "tmp")}
            (workspace / "tmp").mkdir(parents=True, exist_ok=True)
            temporary = own["TMPDIR"]
        if self._settings.compiled and not _holds(vllm, self._settings.compiled):
            shutil.rmtree(vllm, ignore_errors=True)  # another engine's, of an earlier release
            workspace.mkdir(parents=True, exist_ok=True)
            shutil.copytree(self._settings.compiled, vllm, copy_function=shutil.copyfile)
        if threads := self._settings.threads:
            own |= {
                "OMP_NUM_THREADS": threads,
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # it would tie all servers of a small machine to the same core
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's process computes itself: one less that starts
            }
        return own | {
            "VLLM_CACHE_ROOT": str(vllm),
            # Part of the key of what is compiled, and by themselves not the same for a build and a server.
            "CUDA_HOME": os.environ.get("CUDA_HOME", DEFAULT_CUDA_HOME),
            # Its sockets are there, whose paths may have 107 bytes: seen from where it runs, a deep directory is near.
            "VLLM_RPC_BASE_PATH": os.path.relpath(
                os.path.realpath(temporary), os.path.realpath(self._checkpoint.parent)
            ),
            "VLLM_CONFIG_ROOT": NO_CONFIGURATION,
            "VLLM_XLA_CACHE_PATH": NO_CONFIGURATION,
            # FlashInfer's sampler compiles when it starts; vLLM's own takes top-k and top-p, too.
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "TORCHINDUCTOR_CACHE_DIR": str(workspace / "torchinductor"),
            "TRITON_CACHE_DIR": str(workspace / "triton"),
        }


def _holds(directory: Path, compiled: Path) -> bool:
    """Whether a server's directory has all that a build compiled; its own additions do not matter."""
    return all((directory / path.relative_to(compiled)).exists() for path in compiled.rglob("*"))


def _first(lines: Any) -> dict[str, Any]:
    """The first message of vLLM's process; empty if it ended."""
    try:
        return dict(json.loads(lines.readline() or b"{}"))
    except OSError:
        return {}


def _python() -> str:
    """This environment's interpreter; the program of Triton's stub is none."""
    if Path(sys.executable or "").name.startswith("python"):
        return sys.executable
    return shutil.which("python3") or "python3"


def _signal(group: int) -> bool:
    """Kill a process group; whether there was one."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
