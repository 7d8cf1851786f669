from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from llm_pipeline.base.errors import ConfigError, ExitCode, PipelineError, Unsupported
from llm_pipeline.cli import main
from llm_pipeline.hub.source import SourceRefused, SourceUnavailable
from llm_pipeline.planning import host
from llm_pipeline.planning.plan import Plan, format_plan, plan_release

REAL = Path(__file__).parents[2] / "configs" / "releases" / "llama-3.1-8b-instruct.yaml"

RECIPES = "recipes: [int4_awq_chat, fp8_chat]"


def demo(configs: Path) -> Path:
    return configs / "releases" / "demo.yaml"


def real(configs: Path) -> Path:
    return configs / "releases" / "llama-3.1-8b-instruct.yaml"


def error_of(path: Path) -> PipelineError:
    with pytest.raises(PipelineError) as caught:
        plan_release(path)
    assert caught.value.exit_code is ExitCode.BAD_INPUT
    return caught.value


def test_the_demo_plan_names_every_stage_in_the_order_in_which_it_runs(configs: Path):
    steps = [f"{step.stage} {step.subject}".strip() for step in plan_release(demo(configs)).stages]
    assert steps == [
        "resolve", "eval_data", "download", "baseline", "baseline_gate",
        "quantize int4_naive", "accuracy int4_naive", "quantize int4_awq", "accuracy int4_awq",
        "quantize fp8", "accuracy fp8",
        "choose cpu", "build cpu", "package cpu",
        "staging cpu", "served_accuracy cpu", "load_test cpu", "staging_down cpu",
        "approve", "canary cpu:5", "canary cpu:25", "canary cpu:50", "canary cpu:100", "settle cpu", "report",
    ]  # fmt: skip


def test_a_recipe_that_is_legal_on_no_target_is_refused_with_reason_and_nearest_choice(configs: Path, edit):
    edit("releases/llama-3.1-8b-instruct.yaml", RECIPES, "recipes: [fp8_chat, nvfp4]")
    error = error_of(real(configs))
    assert isinstance(error, Unsupported)
    assert str(real(configs)) in error.message
    assert "recipe nvfp4 on target h100: nvfp4 does not run on sm90" in error.message
    assert "-> weights: int4_awq" in error.message
    assert "fp8_chat" not in error.message


def test_a_recipe_that_is_refused_on_one_target_only_is_a_warning(configs: Path, edit):
    edit("targets/l40s.yaml", "accelerator: L40S", "accelerator: A100-SXM4-80GB")
    plan = plan_release(real(configs), store_seconds=0)
    warning = "fp8_chat on l40s is refused, so l40s fails if fp8_chat is chosen: fp8 does not run on sm80"
    assert any(line.startswith(warning) for line in plan.warnings)
    assert "NO" in format_plan(plan)


def test_an_unknown_gpu_is_refused_with_its_file_and_near_names(configs: Path, edit):
    edit("targets/h100.yaml", "H100-SXM5-80GB", "H100")
    error = error_of(real(configs))
    assert error.where.endswith("targets/h100.yaml")
    assert "accelerator: unknown accelerator 'H100'" in error.message
    assert "H100-SXM5-80GB" in error.hint


def test_a_server_of_several_processes_is_refused_for_staging_starts_one(configs: Path, edit):
    edit("targets/h200_tp4.yaml", "accelerator_count: 4", "accelerator_count: 4\ngpus_per_node: 2")
    error = error_of(configs / "releases" / "llama-3.3-70b-instruct.yaml")
    assert "target h200_tp4: its server is several processes (mode multi_node_launcher)" in error.message


def test_a_batch_that_does_not_fit_is_refused_with_the_largest_that_does(configs: Path, edit):
    edit("targets/l40s.yaml", "maximum_sequences: 24", "maximum_sequences: 64")
    error = error_of(real(configs))
    assert "recipe fp8_chat on target l40s: 9.1 GB weights" in error.message
    largest = int(error.message.rpartition("limits.maximum_sequences: ")[2])
    edit("targets/l40s.yaml", "maximum_sequences: 64", f"maximum_sequences: {largest}")
    plan_release(real(configs), store_seconds=0)


def test_heads_that_cannot_be_split_are_refused(configs: Path, edit):
    edit("targets/l40s.yaml", "accelerator_count: 1", "accelerator_count: 3")
    edit("targets/l40s.yaml", "tensor: 1", "tensor: 3")
    assert "32 attention heads cannot be split over tensor parallelism 3" in error_of(real(configs)).message


def test_a_model_that_nobody_was_to_read_is_planned_without_memory_and_says_so(configs: Path, monkeypatch):
    text = demo(configs).read_text()
    begin, end = text.index("  sizes: {"), text.index("  }\n") + 4
    demo(configs).write_text(text[:begin] + text[end:])
    plan = plan_release(demo(configs), source_seconds=0)
    assert plan.disk is None
    assert all(recipe.memory is None for recipe in plan.targets[0].recipes)
    assert "memory and disk are not judged: the sizes of demo/tiny-llama are not known" in plan.warnings
    with pytest.raises(SourceUnavailable, match="no answer from") as caught:
        plan_release(demo(configs))
    assert "model.sizes" in caught.value.hint
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SourceRefused, match="the hub's client is in offline mode"):
        plan_release(demo(configs))


def test_a_hub_that_does_not_answer_leaves_the_sizes_that_the_release_states(configs: Path):
    plan = plan_release(demo(configs))
    assert plan.facts is not None
    assert plan.facts.parameters == 524_928
    assert any(line.startswith("the model is judged by the release config (model.sizes)") for line in plan.warnings)


def test_a_directory_that_does_not_exist_is_an_error_whatever_is_stated(configs: Path, edit):
    edit("releases/demo.yaml", "model:\n", "model:\n  source: file:///models/none\n")
    error = error_of(demo(configs))
    assert isinstance(error, ConfigError)
    assert error.message == "there is no such directory"
    assert error.where == "/models/none"


def test_a_missing_interpreter_stops_a_release_of_this_machine(configs: Path, edit):
    edit("deployments/local.yaml", f"model: {sys.executable}", "model: ../../none/bin/python")
    error = error_of(demo(configs))
    assert "environments.model: there is no interpreter at" in error.message
    assert "make environments" in error.hint


def test_a_missing_interpreter_is_only_a_warning_for_gpu_hosts_elsewhere():
    warnings = plan_release(REAL, store_seconds=0).warnings
    assert any(line.startswith("on this machine, environments.model: there is no interpreter") for line in warnings)


def test_a_host_without_envoy_stops_a_release_of_this_machine(configs: Path, edit, tmp_path, monkeypatch):
    here, bare = sys.executable, tmp_path / "bin/python"
    bare.parent.mkdir()
    bare.symlink_to(here)
    edit("deployments/local.yaml", f"control: {here}", f"control: {bare}")
    assert plan_release(demo(configs))  # another interpreter starts it
    monkeypatch.setattr(sys, "executable", str(bare))
    assert "places.cpu.router: Envoy is not installed beside this interpreter" in error_of(demo(configs)).message


def test_a_full_disk_stops_a_release_of_this_machine(configs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host, "free_bytes", lambda _directory: 1_000_000)
    assert "store and work_root: 5.01 MB needed, 1 MB free" in error_of(demo(configs)).message


def test_a_port_that_something_else_listens_on_is_a_warning(configs: Path, edit):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        edit("deployments/local.yaml", "http: 18400", f"http: {port}")
        warnings = plan_release(demo(configs)).warnings
    assert any(f"places.cpu.staging: this port {port} is in use by" in line for line in warnings)


def test_an_engine_that_is_built_in_one_environment_and_served_in_another_is_a_warning(configs: Path, edit):
    said = "cpu is built in environment model and served in control: openvino-genai must be in both"
    assert not any(line.startswith(said) for line in plan_release(demo(configs)).warnings)
    edit("deployments/local.yaml", "  cpu:\n", "  cpu:\n    environment: control\n")
    assert any(line.startswith(said) for line in plan_release(demo(configs)).warnings)


def test_a_container_without_a_digest_is_a_warning_with_how_to_pin_it(configs: Path, edit):
    plan = plan_release(real(configs), store_seconds=0)
    pin = "h100, h200, l40s: nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3 is not pinned"
    assert any(line.startswith(pin) and "imagetools inspect" in line for line in plan.warnings)
    assert "26.07-trtllm-python-py3, not pinned" in format_plan(plan)
    digest = f"sha256:{'ab' * 32}"
    edit("targets/h100.yaml", "26.07-trtllm-python-py3", f"26.07-trtllm-python-py3@{digest}")
    plan = plan_release(real(configs), store_seconds=0)
    assert (plan.targets[0].digest, plan.targets[1].digest) == (digest, None)
    assert plan.targets[0].container == plan.targets[1].container
    assert any(line.startswith(pin.removeprefix("h100, ")) for line in plan.warnings)


def test_the_plan_is_written_where_it_is_wanted(configs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    output = tmp_path / "plans" / "demo"
    assert main(["plan", str(demo(configs)), "--output", str(output), "--json"]) == ExitCode.GO
    written = (output / "plan.json").read_text()
    assert capsys.readouterr().out == written
    assert (output / "plan.txt").read_text() == format_plan(Plan.model_validate_json(written))
    occupied = tmp_path / "file"
    occupied.touch()
    assert main(["plan", str(demo(configs)), "--output", str(occupied)]) == ExitCode.BAD_INPUT
    assert "cannot be written" in capsys.readouterr().err


def test_a_bucket_that_nobody_may_see_here_is_a_warning_and_holds_up_nothing(configs: Path):
    plan = plan_release(real(configs))
    unknown = "how long steps took before is not known: s3://ml-releases/llm-pipeline cannot be read now"
    assert any(unknown in line for line in plan.warnings)
    assert {step.basis for step in plan.stages} <= {"model", None}


HOST = "quantization_host: { accelerator: H200-SXM-141GB, count: 1 }"


def on_blackwell(configs: Path) -> None:
    for target in ("h100", "h200", "l40s"):
        path = configs / "targets" / f"{target}.yaml"
        lines = path.read_text().splitlines()
        changed = ["accelerator: B200-SXM-180GB" if line.startswith("accelerator: ") else line for line in lines]
        path.write_text("\n".join(changed))


def test_quantization_that_needs_cuda_is_a_warning_where_neither_this_machine_nor_the_deployment_has_it(
    configs: Path, edit, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(host, "has_nvidia_gpu", lambda: False)
    edit("releases/llama-3.1-8b-instruct.yaml", RECIPES, "recipes: [nvfp4]")
    on_blackwell(configs)
    needs = "nvfp4: quantization needs a CUDA device"
    assert not any(line.startswith(needs) for line in plan_release(real(configs), store_seconds=0).warnings)
    edit("deployments/gpu-cluster.yaml", HOST, "")
    warnings = plan_release(real(configs), store_seconds=0).warnings
    assert any(line.startswith(needs) for line in warnings)
    assert any("names no quantization_host" in line and "not predicted" in line for line in warnings)


def test_a_search_for_fewer_bits_than_the_model_can_have_is_refused_with_those_it_can(configs: Path, edit):
    (configs / "quantization" / "searched.yaml").write_text(
        "weights: auto\n"
        "search: { formats: [int4_awq, fp8], effective_bits: [4.5, 6] }\n"
        "calibration: { sources: [calibration/chat-example.jsonl], samples: 8, maximum_tokens: 64 }\n"
    )
    edit("releases/llama-3.1-8b-instruct.yaml", RECIPES, "recipes: [searched, fp8_chat]")
    error = error_of(real(configs))
    assert error.where.endswith("quantization/searched.yaml")
    assert "effective_bits 4.5 cannot be reached" in error.message
    assert "is 4.84" in error.message
    assert "from 4.9 on" in error.hint
    edit("quantization/searched.yaml", "[4.5, 6]", "[5, 6]")
    assert plan_release(real(configs), store_seconds=0).ladders["h100"] == ("searched-5", "searched-6", "fp8_chat")


def test_tasks_that_a_served_model_cannot_be_asked_are_refused(configs: Path, edit):
    edit("releases/llama-3.1-8b-instruct.yaml", "served_tasks: [gsm8k]", "served_tasks: [gsm8k, hellaswag]")
    message = error_of(real(configs)).message
    assert "served_tasks: hellaswag is multiple_choice" in message
    assert "tensorrt_llm_llmapi tells none when served" in message
    assert "-> served_tasks: [gsm8k]" in message
    edit("releases/demo.yaml", "served_tasks: [demo_generate]", "served_tasks: [demo_choice]")
    plan_release(demo(configs), store_seconds=0)


def test_a_pool_that_can_never_decide_is_a_warning_with_what_it_lacks(configs: Path, edit):
    edit("releases/llama-3.1-8b-instruct.yaml", "maximum_length: 4096", "maximum_length: 4096\n  limit: 400")
    warnings = plan_release(real(configs), store_seconds=0).warnings
    assert "accuracy: 1600 items are fewer than minimum_items 2000: it can only be INCONCLUSIVE" in warnings
    edit("policies/production.yaml", "minimum_items: 2000", "minimum_items: 500")
    warnings = plan_release(real(configs), store_seconds=0).warnings
    assert any(
        line.startswith("accuracy: all tasks together: 1600 items are too few for a margin") for line in warnings
    )


def test_a_load_test_that_can_never_show_its_claim_is_refused(configs: Path, edit):
    edit("releases/demo.yaml", "policy: demo", "policy: mlperf-llama-3.1-8b-server")
    edit("releases/demo.yaml", "duration_seconds: 6", "duration_seconds: 2")
    error = error_of(demo(configs))
    assert "80 requests in 12 windows can never show 99 % at 99 % confidence: 536 are needed" in error.message
    assert "duration_seconds of" in error.hint


def test_a_load_test_without_room_for_misses_is_a_warning(configs: Path, edit):
    edit("releases/demo.yaml", "duration_seconds: 6", "duration_seconds: 3")
    assert any(line.startswith("load_test: its 12 windows have") for line in plan_release(demo(configs)).warnings)


def test_the_table_says_what_gpus_will_cost():
    text = format_plan(plan_release(REAL, store_seconds=0))
    assert re.search(r"\n  baseline +\S.*, model", text)
    assert re.search(r"canary +h100, h200, l40s at 5 % +16 min 40 s each, model +0\.833 +3\.06\n", text)


def test_weights_that_the_gpus_for_quantization_do_not_hold_are_a_warning(configs: Path, edit):
    large = configs / "releases" / "llama-3.3-70b-instruct.yaml"
    edit("deployments/gpu-cluster.yaml", "accelerator: H200-SXM-141GB", "accelerator: H100-SXM5-80GB")
    (warning,) = [line for line in plan_release(large, store_seconds=0).warnings if "quantization_host.count" in line]
    assert "1 x H100-SXM5-80GB do not hold them with a calibration: 3 do" in warning


def test_a_checkpoint_for_engines_that_no_target_builds_is_a_warning(configs: Path, edit):
    edit("quantization/fp8_chat.yaml", "weights: fp8", "weights: fp8\ntensorrt_llm_checkpoint: true")
    warnings = plan_release(real(configs), store_seconds=0).warnings
    assert any("tensorrt_llm_checkpoint is read by engine tensorrt_llm_engine" in line for line in warnings)


@pytest.mark.parametrize("name", [REAL.name, "demo.yaml"])
def test_planning_takes_little_time_and_imports_nothing_heavy(configs: Path, name: str):
    config = configs / "releases" / name
    code = (
        "import json, sys, time\n"
        "from pathlib import Path\n"
        "from llm_pipeline.planning.plan import plan_release\n"
        f"plan_release(Path({str(config)!r}))\n"
        "print(json.dumps([time.process_time(), sorted(sys.modules)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    seconds, modules = json.loads(done.stdout)
    assert seconds < 4.0  # of processor time; a busy machine takes twice as much, `make bench-plan` has the goal
    heavy = {"torch", "transformers", "modelopt", "lm_eval", "airflow", "scipy", "openvino", "huggingface_hub"}
    heavy |= {"boto3"}
    assert heavy.isdisjoint(modules)
    assert ("botocore" in modules) == (name == REAL.name)  # its store is a bucket
