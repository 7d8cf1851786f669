"""The `tensorrt_llm_llmapi` builder: the checkpoint is served as it is, by TensorRT-LLM's LLM API.

There is no engine to compile. The build renders the LLM args for the target's version, checks them before a GPU is
touched, and then loads the model on the target's GPU and answers the golden prompts. The
engine directory holds `llm_args.yaml` and `engine.json`, whose `checkpoint` names what is served.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from llm_pipeline.adapters.tensorrt_llm.llmapi_smoke import SmokeInputs, SmokeReport
from llm_pipeline.adapters.tensorrt_llm.repositories import LLM_ARGUMENTS_FILE
from llm_pipeline.artifacts.checkpoint_files import read_json, read_quantization
from llm_pipeline.artifacts.engine_description import (
    EngineDescription,
    EngineFacts,
    driver_warning,
    require_target_host,
)
from llm_pipeline.artifacts.golden import answered, write_golden
from llm_pipeline.artifacts.model_rules import read_model_rules
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.json_document import load_record
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.offline import OFFLINE
from llm_pipeline.engines.builder import BuildInputs, golden_match
from llm_pipeline.engines.llm_args.checking import check_llm_args
from llm_pipeline.engines.llm_args.rendering import render_llm_args
from llm_pipeline.engines.tool_process import run_tool
from llm_pipeline.model_facts.reader import stated_context

log = get_logger(__name__)


class TensorRtLlmLlmApiBuilder:
    """The `tensorrt_llm_llmapi` engine builder."""

    def build(self, inputs: BuildInputs, destination: Path) -> EngineFacts:
        target, where = inputs.target, f"targets/{inputs.target.name}.yaml"
        if not inputs.golden:
            problem = "there are no golden prompts to check the loaded model by"
            raise ConfigError(problem, where="accuracy.tasks", hint="give the release a generative task")
        quantization = read_quantization(inputs.checkpoint)
        context = stated_context(read_json(inputs.checkpoint / "config.json"))
        dtype = inputs.dtype if quantization.algorithm is None else None
        arguments = render_llm_args(target, checkpoint=inputs.checkpoint, dtype=dtype)
        version = target.runtime_version or ""
        check = check_llm_args(arguments, version)
        check.require(where)
        for warning in check.warnings:
            log.warning(warning)
        log.info("the LLM args fit the recorded schema", version=version, warnings=len(check.warnings))
        host = require_target_host(target)
        log.info("the host is the target's", gpu=host.gpus[0].name, gpus=len(host.gpus), driver=host.driver)
        if too_old := driver_warning(target, host):
            log.warning(too_old)
        with tempfile.TemporaryDirectory(prefix="build-", dir=destination.parent) as scratch:
            report = _run_smoke(inputs, arguments, Path(scratch))
        matched = golden_match(inputs.golden, report.completions)  # or it answers otherwise than what was judged
        destination.mkdir()
        written = yaml.safe_dump(arguments, sort_keys=False)
        (destination / LLM_ARGUMENTS_FILE).write_text(written, encoding="utf-8")
        write_golden(destination, answered(inputs.golden, report.completions))
        facts = EngineFacts(
            bytes=len(written.encode()),
            quantization=quantization.algorithm,
            kv_cache=arguments["kv_cache_config"]["dtype"],
            context_length=context or target.limits.maximum_tokens_per_request,
            device=host.gpus[0].name,
            versions=report.versions,
            seconds=report.seconds,
            details={"golden_match_fraction": matched, "golden_prompts": len(report.completions)},
        )
        rules = read_model_rules(inputs.checkpoint)
        EngineDescription(facts=facts, target=target, rules=rules, host=host, checkpoint=inputs.checkpoint_ref).write(
            destination
        )
        return facts


def _run_smoke(inputs: BuildInputs, arguments: dict[str, Any], scratch: Path) -> SmokeReport:
    """Load the model on this host's GPUs, and ask it.

    Raises:
        BuildFailed: It does not load.
    """
    given = SmokeInputs(
        arguments={**arguments, "model": str(inputs.checkpoint)},
        version=inputs.target.runtime_version or "",
        golden=tuple(inputs.golden),
        end_tokens=read_model_rules(inputs.checkpoint).end_tokens,
    )
    asked, report = scratch / "inputs.json", scratch / "smoke.json"
    asked.write_text(given.model_dump_json(), encoding="utf-8")
    command = [sys.executable, "-m", "llm_pipeline.adapters.tensorrt_llm.llmapi_smoke", str(asked), str(report)]
    limit = inputs.target.build.time_limit_minutes * 60
    run_tool(command, time_limit_seconds=limit, name="llmapi_smoke", variables=OFFLINE)
    return load_record(SmokeReport, report, "the smoke test left no report")
