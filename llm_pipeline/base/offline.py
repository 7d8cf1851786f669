"""What keeps the engines' libraries from sending anything: environment of servers and builds, telemetry of OpenVINO."""

from __future__ import annotations

OFFLINE = {"TRTLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""Nothing is fetched and nothing is sent: TensorRT-LLM reports its use to NVIDIA unless it is told not to."""


def refuse_telemetry() -> None:
    """Keep OpenVINO and NNCF from reporting each conversion to Google Analytics, which they do by default.

    Their only switch is a file in the user's home, so their question whether the user agreed is answered here.
    """
    try:
        from openvino_telemetry.utils.opt_in_checker import ConsentCheckResult, OptInChecker
    except ImportError:
        return
    OptInChecker.check = lambda *_, **__: ConsentCheckResult.DECLINED
