from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llm_pipeline import __version__
from llm_pipeline.cli import main

ROOT = Path(__file__).parents[1]
REAL = ROOT / "configs" / "releases" / "llama-3.1-8b-instruct.yaml"


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "llm_pipeline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "configs", tmp_path / "configs"))


def test_plan_prints_a_table_and_ends_with_0():
    done = run_cli("plan", str(REAL))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("plan of llama-3.1-8b-instruct\n")
    assert "target h200: 1 x H200-SXM-141GB (sm90), tensorrt_llm_llmapi 1.2.1" in done.stdout
    assert done.stderr == ""


def test_plan_prints_json_for_programs(capsys: pytest.CaptureFixture[str]):
    assert main(["plan", "--json", str(REAL)]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["release"] == "llama-3.1-8b-instruct"
    assert [target["name"] for target in plan["targets"]] == ["h100", "h200", "l40s"]


def test_a_mistake_in_a_config_ends_with_4_and_one_error_without_a_traceback(configs: Path):
    path = configs / "releases" / "demo.yaml"
    text = path.read_text()
    path.write_text(text.replace("  rate_per_second: 20", "  rate_per_minute: 20"))
    line = text[: text.index("  rate_per_second")].count("\n") + 1
    for command in ("plan", "run"):
        done = run_cli(command, str(path))
        assert done.returncode == 4
        assert done.stdout == ""
        assert done.stderr == (
            f"error: {path}:{line}: unknown key workload.rate_per_minute: did you mean rate_per_second?"
            " -> correct demo.yaml; nothing was started\n"
        )


def test_a_refused_combination_ends_with_4(configs: Path):
    path = configs / "targets" / "h100.yaml"
    path.write_text(path.read_text().replace("engine: tensorrt_llm_llmapi", "engine: openvino_cpu"))
    done = run_cli("plan", str(configs / "releases" / REAL.name))
    assert done.returncode == 4
    assert "on target h100: engine openvino_cpu does not run on a GPU -> engine: tensorrt_llm_llmapi" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_config_ends_with_4_and_says_what_there_is(capsys: pytest.CaptureFixture[str]):
    assert main(["plan", str(REAL.with_name("llama.yaml"))]) == 4
    error = capsys.readouterr().err
    assert "llama.yaml: no such file" in error
    assert "llama-3.1-8b-instruct" in error


def test_a_bad_run_starts_and_writes_nothing(configs: Path):
    path = configs / "releases" / "demo.yaml"
    path.write_text(path.read_text() + "unknown: 1\n")
    assert run_cli("run", str(path)).returncode == 4
    assert sorted(entry.name for entry in configs.parent.iterdir()) == ["configs"]


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize("arguments", [[], ["plan"], ["plna", "x.yaml"], ["run", "x.yaml", "--approve", "--reject"]])
def test_wrong_arguments_end_with_a_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code != 0
    assert "usage: llm-pipeline" in capsys.readouterr().err


def test_the_command_line_imports_nothing_heavy():
    code = "import sys, llm_pipeline.cli; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert {"torch", "airflow", "numpy", "psutil", "huggingface_hub"}.isdisjoint(done.stdout.split())
