"""The configuration of a whole release on one GPU: a store, a hub, places and gates of its own below one directory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import trained_tasks
from benchmarks.gpu.processes import REPOSITORY

MODEL_ID = "bench/trained-llama"
HUB_PORT, ROUTER_PORT = 18380, 18300
TARGET = "gpu"
FIRST, SECOND = "bf16", "fp8"


@dataclass(frozen=True)
class Host:
    """What the release runs on.

    Attributes:
        accelerator: The GPU's name in the catalog; `cpu` to try the benchmark without one.
        memory_share: Of the GPU's memory that each server may take; up to four of them stand side by side.
        triton_home: Directory of the unpacked tritonserver.
        control: Interpreter of the command line and the router.
        model: Interpreter with modelopt and lm-eval.
        engine: Interpreter with vLLM and numpy 1.26.
    """

    accelerator: str
    memory_share: float
    triton_home: Path
    control: Path
    model: Path
    engine: Path

    @property
    def is_cpu(self) -> bool:
        """Whether it is only tried, with the demo's model."""
        return self.accelerator == "cpu"


@dataclass(frozen=True)
class Load:
    """The traffic of load test and canary, in requests a second, and how long a canary's step is watched."""

    rate: float
    seconds: float
    bake_seconds: float


def write_files(work: Path, host: Host, load: Load) -> Path:
    """Write tasks, texts, prompts and configs below `work`; returns the directory of the configs."""
    configs = work / "configs"
    if not (configs / "tasks").is_dir():
        (_copy_demo if host.is_cpu else _write_texts)(configs)
    _write(configs / "deployments" / "local.yaml", _deployment(work, host))
    _write(configs / "targets" / f"{TARGET}.yaml", _target(host))
    _write(configs / "policies" / "gates.yaml", _policy(load))
    _write(configs / "quantization" / "none.yaml", {"weights": "none"})
    _write(configs / "quantization" / "fp8.yaml", _calibrated("fp8"))
    second = "none" if host.is_cpu else "fp8"  # vLLM reads no FP8 on a CPU
    for name, recipe in ((FIRST, "none"), (SECOND, second)):
        _write(configs / "releases" / f"{name}.yaml", _release(recipe, host, load))
    return configs


def _context(host: Host) -> int:
    return 128 if host.is_cpu else 256


def _write_texts(configs: Path) -> None:
    trained_tasks.write_tasks(configs / "tasks", 3000, 2000)
    (configs / "calibration").mkdir()
    trained_tasks.write_calibration(configs / "calibration" / "texts.jsonl", 512)
    (configs / "workloads").mkdir()
    prompts = (json.dumps({"prompt": item.prompt}) + "\n" for item in trained_tasks.batch(31, 4000))
    (configs / "workloads" / "prompts.jsonl").write_text("".join(prompts), encoding="utf-8")


def _copy_demo(configs: Path) -> None:
    shutil.copytree(REPOSITORY / "configs" / "tasks" / "demo", configs / "tasks")
    (configs / "workloads").mkdir()
    shutil.copy(REPOSITORY / "configs" / "workloads" / "demo.jsonl", configs / "workloads" / "prompts.jsonl")


def _deployment(work: Path, host: Host) -> dict[str, Any]:
    def ports(first: int) -> dict[str, int]:
        return {"http": first, "grpc": first + 1, "metrics": first + 2}

    return {
        "store": str(work / "store"),
        "work_root": str(work / "work"),
        "state_root": str(work / "state"),
        "hub": {"endpoint": f"http://127.0.0.1:{HUB_PORT}"},
        "environments": {"control": str(host.control), "model": str(host.model), "engine": str(host.engine)},
        "triton_home": str(host.triton_home),
        "gpu_hour_prices": {} if host.is_cpu else {host.accelerator: 5.0},
        "places": {
            TARGET: {
                "staging": ports(18310),
                "environment": "engine",
                "comparison": ports(18340),
                "blue": ports(18320),
                "green": ports(18330),
                "router": {"port": ROUTER_PORT, "admin_port": ROUTER_PORT + 1},
            }
        },
    }


def _target(host: Host) -> dict[str, Any]:
    return {
        "accelerator": host.accelerator,
        "accelerator_count": 0 if host.is_cpu else 1,
        "engine": "vllm",
        "environment": "engine",
        "runtime_version": "0.20.2",
        "container": "nvcr.io/nvidia/tritonserver:26.07-vllm-python-py3",  # what a cluster would run
        "limits": {
            "maximum_sequences": 8 if host.is_cpu else 128,
            "maximum_tokens_per_request": _context(host),
            "maximum_batched_tokens": 512 if host.is_cpu else 4096,
            "maximum_queued_requests": 512,
        },
        "runtime": {
            "kv_cache": {"free_memory_fraction": host.memory_share},
            **({"cuda_graphs": None} if host.is_cpu else {}),
        },
    }


def _policy(load: Load) -> dict[str, Any]:
    accuracy = {"margin": 0.015, "task_margin": 0.03, "minimum_items": 500}
    return {
        "accuracy": accuracy,
        "served_accuracy": accuracy,
        "staging": {"ready_timeout_seconds": 300, "golden_match_fraction": 0.9, "minimum_golden_prompts": 20},
        "load_test": {
            "service_level": {"first_token_milliseconds": 500, "end_to_end_milliseconds": 2000},
            "attainment": 0.95,
            "maximum_error_fraction": 0.0,
            "minimum_requests": 100,
            "maximum_client_lag_milliseconds": 100,
        },
        "canary": {
            "steps_percent": [5, 25, 50, 100],
            "minimum_bake_seconds": load.bake_seconds,
            "maximum_bake_seconds": 20 * load.bake_seconds,
            "minimum_requests": 12,
            "slow_ratio": 2.0,
            "slow_quantiles": [0.5, 0.9],
            "look_seconds": 1,
            "on_undecided": "roll_back",
        },
    }


def _calibrated(weights: str) -> dict[str, Any]:
    calibration = {"sources": ["calibration/texts.jsonl"], "samples": 256, "maximum_tokens": 64}
    return {"weights": weights, "calibration": calibration}


def _release(recipe: str, host: Host, load: Load) -> dict[str, Any]:
    prefix = "demo" if host.is_cpu else "trained"
    return {
        "description": f"A model trained here, {recipe}, on vLLM.",
        "model": {"id": MODEL_ID, "revision": "main"},
        "baseline": {"dtype": "float16" if host.is_cpu else "bfloat16"},
        "recipes": [recipe],
        "targets": [TARGET],
        "policy": "gates",
        "deployment": "local",
        "evaluation": {
            "task_directory": "tasks",
            "tasks": [f"{prefix}_choice", f"{prefix}_generate"],
            "served_tasks": [f"{prefix}_generate"],
            "maximum_length": _context(host),
        },
        "workload": {
            "prompts": "workloads/prompts.jsonl",
            "rate_per_second": load.rate,
            "duration_seconds": load.seconds,
            "output_tokens": {"kind": "lognormal", "median": 8, "p95": 18, "minimum": 2, "maximum": 24},
            "warmup_requests": 20,
            "seed": 7,
        },
        "approval": {"required": True, "timeout_hours": 1},
    }


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")  # JSON is YAML
