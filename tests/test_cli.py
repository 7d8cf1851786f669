from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deployment_here import write_bare_deployment

from llm_pipeline.base.errors import ExitCode
from llm_pipeline.cli import _parser, main
from llm_pipeline.cli.editing import FOLDERS
from llm_pipeline.config.reference import CONFIG_FILES

ROOT = Path(__file__).parents[1]
REAL = ROOT / "configs" / "releases" / "llama-3.1-8b-instruct.yaml"


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "llm_pipeline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_plan_prints_a_table_and_ends_with_0():
    done = run_cli("plan", str(REAL))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("plan of llama-3.1-8b-instruct\n")
    assert "target h200: 1 x H200-SXM-141GB, tensorrt_llm_llmapi 1.2.1" in done.stdout
    assert done.stderr == ""


def test_the_deployment_of_the_project_in_which_one_is_needs_no_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LLM_PIPELINE_DEPLOYMENT", raising=False)
    assert main(["init", "mine", "--model", "organisation/name"]) == 0
    assert main(["ls"]) == 4
    assert "go to the project's directory" in capsys.readouterr().err
    monkeypatch.chdir("mine")
    assert main(["ls"]) == 0
    assert capsys.readouterr().out == "no releases\n"


def test_a_runbook_is_shown_by_the_name_that_an_error_ends_with(capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("LLM_PIPELINE_RUNBOOKS", raising=False)
    shutil.copy(ROOT / "docs" / "runbooks.md", tmp_path)
    monkeypatch.setattr("llm_pipeline.base.errors._INSTALLED", tmp_path / "runbooks.md")
    assert main(["plan", str(tmp_path)]) == 4
    *command, name = capsys.readouterr().err.rstrip(")\n").rpartition("(")[2].split()
    assert command == ["llm-pipeline", "runbook"]
    assert main(["runbook", name]) == 0
    assert capsys.readouterr().out.startswith("ConfigError\n\n`no deployment is named`")
    assert main(["runbook", "configeror"]) == 4
    assert "-> configerror" in capsys.readouterr().err


def test_a_runbook_reads_well_in_a_terminal(capsys):
    assert main(["runbook"]) == 0
    page = capsys.readouterr().out
    assert "](" not in page
    assert "/.." not in page
    assert "llm-pipeline schema FOLDER --text" in page


def commands_of_help(text: str) -> list[str]:
    return re.findall(r"^  ([a-z][\w-]*) ", text, re.MULTILINE)


def test_help_lists_every_command_once_by_task_and_is_what_no_command_at_all_is_answered_with(capsys):
    parser = _parser()
    (commands,) = (action for action in parser._actions if action.dest == "command")
    shown = parser.format_help()
    assert sorted(commands_of_help(shown)) == sorted(commands.choices)
    for title in ("Releases", "The store", "Production", "Servers", "Reading and editing"):
        assert f"\n{title}:\n" in shown
    assert commands.choices["plan"].format_usage().startswith("usage: llm-pipeline plan [-h]")
    assert main([]) == ExitCode.BAD_INPUT
    assert commands_of_help(capsys.readouterr().err) == commands_of_help(shown)


def test_a_run_may_have_some_of_the_configs_targets_and_no_others(configs: Path, capsys: pytest.CaptureFixture[str]):
    some = ["--target", "h200", "--target", "h100", "--recipe", "fp8_chat", "--strategy", "every", "--revision", "v2"]
    assert main(["plan", *some, str(REAL)]) == 0
    shown = capsys.readouterr().out
    assert "  otherwise   revision v2; recipes fp8_chat; targets h100, h200; ladder strategy every\n" in shown
    assert "target l40s" not in shown
    for command in ("plan", "run"):
        assert main([command, "--target", "h800", str(REAL)]) == 4
        told = capsys.readouterr().err
        assert "h800 is not among the targets of release llama-3.1-8b-instruct" in told
        assert "a run may have some of h100, h200, l40s" in told


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
            " -> correct demo.yaml; nothing was started (docs/runbooks.md#configerror)\n"
        )
    assert [entry.name for entry in configs.parent.iterdir()] == ["configs"]


def test_a_missing_file_is_told_with_what_there_is(tmp_path, monkeypatch, capsys):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert main(["init", ".", "--model", "organisation/name", "--name", "chat"]) == 0
    for command, told in (
        (["plan", "chat"], "no such file -> releases/ has: chat ("),
        (["plan", "releases/llama.yaml"], "llama.yaml: no such file -> releases/ has: chat"),
        (["render", "a-release", "--output", "o", "--options", "releases/none"], "releases/ has: chat"),
    ):
        assert main(command) == 4
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["plan"], ["plna", "x.yaml"], ["run", "x.yaml", "--approve", "--reject"], ["stop", "--drain", "nan"]]
)
def test_wrong_arguments_end_with_a_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 4
    assert "usage: llm-pipeline" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["stop", "", "--yes"],
        ["start", "cpu", "--staging", ""],
        ["push", "r", "--repository", ""],
        ["approve", ""],
        ["run", "x.yaml", "--revision", ""],
        ["guard", "--target="],
    ],
    ids=" ".join,
)
def test_an_empty_argument_is_no_argument_left_out(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    """`stop "$PLACE" --yes` without that variable would stop every place."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 4
    assert "an argument is empty: is a variable of the shell not set?" in capsys.readouterr().err


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory without a checkout's files, and no deployment in the environment."""
    monkeypatch.delenv("LLM_PIPELINE_DEPLOYMENT", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", ["ls", "show x", "verify x", "diff x y", "report x", "gc", "claims"])
def test_a_command_without_a_deployment_says_how_to_name_one(elsewhere: Path, command: str, capsys):
    assert main(command.split()) == 4
    assert "give --deployment FILE, set LLM_PIPELINE_DEPLOYMENT, or go to" in capsys.readouterr().err


@pytest.mark.parametrize("way", ["option", "variable", "checkout"])
def test_the_deployment_is_named_or_the_checkouts_own(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], way: str
):
    wanted = elsewhere / ("configs/deployments/local.yaml" if way == "checkout" else "wanted.yaml")
    other = elsewhere / "configs/deployments/local.yaml"
    for path in (other, wanted):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("wrong: 1\n")
    write_bare_deployment(wanted)
    if way == "variable":
        monkeypatch.setenv("LLM_PIPELINE_DEPLOYMENT", str(wanted))
    option = ["-d", str(wanted)] if way == "option" else []
    assert main(["ls", *option]) == 0
    assert capsys.readouterr().out == "no releases\n"


def test_garbage_collection_is_a_dry_run_unless_told_to_delete(elsewhere: Path, capsys: pytest.CaptureFixture[str]):
    deployment = write_bare_deployment(elsewhere / "here.yaml")
    left = elsewhere / "store/releases/tiny-00000001-00000001/results/left.json"
    left.parent.mkdir(parents=True)
    left.write_text('{"revision": "1", "value": {}}')
    assert main(["gc", "-d", deployment]) == 0
    assert "nothing was changed: --delete does it" in capsys.readouterr().out
    assert left.exists()
    assert main(["gc", "-d", deployment, "--delete", "--json"]) == 0
    assert [one["what"] for one in json.loads(capsys.readouterr().out)["going"]] == ["release"]
    assert not left.exists()


def test_the_command_line_imports_nothing_heavy():
    code = "import sys, llm_pipeline.cli; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert {"torch", "airflow", "numpy", "psutil", "huggingface_hub"}.isdisjoint(done.stdout.split())


def test_the_schemas_of_all_folders_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["schema", "--output", str(tmp_path)]) == ExitCode.GO
    assert {path.stem for path in tmp_path.iterdir()} == set(CONFIG_FILES)
    assert set(FOLDERS) == set(CONFIG_FILES)
    capsys.readouterr()
    assert main(["schema", "policies"]) == ExitCode.GO
    assert "load_test" in json.loads(capsys.readouterr().out)["properties"]


def test_the_fields_of_a_folders_files_are_told_in_words(capsys: pytest.CaptureFixture[str]):
    assert main(["schema", "releases", "--text"]) == ExitCode.GO
    told = capsys.readouterr().out
    assert "`rate_per_second`" in told
    assert "`gpu_hour_prices`" not in told
    assert main(["schema", "--text"]) == ExitCode.GO
    assert "`gpu_hour_prices`" in capsys.readouterr().out


def test_a_shell_completes_commands_and_options(tmp_path: Path):
    for line, expected in {
        "llm-pipeline ver": {"verify"},
        "llm-pipeline plan --rep": {"--replace"},
        "llm-pipeline runbook no_g": {"no_go"},
        "llm-pipeline runbook StageCr": {"StageCrashed"},
        "llm-pipeline schema pol": {"policies"},
    }.items():
        answer = tmp_path / "answer"
        environment = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "_ARGCOMPLETE_IFS": " ",
                       "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9"}  # fmt: skip
        subprocess.run([sys.executable, "-m", "llm_pipeline"], env=os.environ | environment, check=True)
        assert set(answer.read_text().split()) == expected
