"""Environment of everything that runs TensorRT-LLM: builds, servers on hosts, servers in pods."""

from __future__ import annotations

OFFLINE = {"TRTLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""Nothing is fetched and nothing is sent: TensorRT-LLM reports its use to NVIDIA unless it is told not to."""
