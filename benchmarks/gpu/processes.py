"""Processes of a benchmark: run to their end, with what they said when they fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_EXTENSIONS = ("get_cuda_ext", "get_cuda_ext_fp8", "get_cuda_ext_mx")
REPOSITORY = Path(__file__).resolve().parents[2]


def run_process(command: Sequence[str], log: Path, ended: Callable[[], bool] = lambda: False) -> tuple[str, float]:
    """Run a process of this repository, offline; returns its standard output and its wall time in seconds.

    Args:
        command: Its command.
        log: File for its standard error.
        ended: Whether a process that failed came to an end that its caller can tell from what it left.
    """
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH")))),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    begun = time.perf_counter()
    with log.open("w", encoding="utf-8") as errors:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
    seconds = time.perf_counter() - begun
    if done.returncode and not ended():
        sys.stderr.write(done.stdout[-4000:] + log.read_text(encoding="utf-8", errors="replace")[-6000:])
        raise SystemExit(f"exit code {done.returncode}: {' '.join(command)}")
    return done.stdout, seconds


def make_checkpoint(directory: Path, *, smoke: bool) -> int:
    """Make the model in a process of its own, which leaves the GPU free; returns its number of parameters."""
    command = [sys.executable, "-m", "benchmarks.gpu.llama_8b", str(directory), *(["--smoke"] if smoke else [])]
    printed, seconds = run_process(command, directory.with_suffix(".log"))
    parameters = int(printed.split()[-1])
    print(f"{parameters / 1e9:.2f} billion parameters, made in {seconds:.0f} s", flush=True)
    return parameters


def start_compilers() -> list[subprocess.Popen[bytes]]:
    """Start to compile modelopt's CUDA extensions, all at once; they are kept in `TORCH_EXTENSIONS_DIR`."""
    if shutil.which("nvidia-smi") is None:
        return []
    code = "import sys; from modelopt.torch.quantization import extensions as e; getattr(e, sys.argv[1])(True)"
    return [
        subprocess.Popen([sys.executable, "-c", code, name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name in _EXTENSIONS
    ]


def wait_for(compilers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until all extensions are compiled."""
    begun = time.perf_counter()
    codes = [compiler.wait() for compiler in compilers]
    if any(codes):
        raise SystemExit("modelopt's CUDA extensions do not compile here: is nvcc on PATH?")
    if compilers:
        print(f"modelopt's CUDA extensions compiled; waited {time.perf_counter() - begun:.0f} s for them", flush=True)
