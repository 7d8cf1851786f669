"""`init`: what it writes loads, plans and shows in Airflow without a change."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from llm_pipeline.adapters.local.directory import DirectoryStore
from llm_pipeline.cli import main
from llm_pipeline.config.files import names_in, shipped_configs
from llm_pipeline.hub.directory_source import DirectorySource
from llm_pipeline.hub.sources import open_source
from llm_pipeline.release.loading import load_release

ROOT = Path(__file__).parents[2]


def init(directory: Path, *more: str) -> int:
    return main(["init", str(directory), *more])


@pytest.mark.parametrize("example", [(), ("--example",)])
def test_a_new_project_loads_with_everything_it_names(tmp_path, capsys, example):
    assert init(tmp_path / "mine", "--model", "organisation/name", *example) == 0
    loaded = load_release(tmp_path / "mine" / "releases" / "first.yaml")
    assert loaded.release.model.id == "organisation/name"
    assert loaded.configs_root == tmp_path / "mine"
    said = capsys.readouterr().out
    assert str(tmp_path / "mine" / "releases" / "first.yaml") in said
    assert f"AIRFLOW__CORE__DAGS_FOLDER={tmp_path / 'mine' / 'dags'}" in said


def test_a_directory_is_named_by_its_path(tmp_path):
    (tmp_path / "weights").mkdir()
    assert init(tmp_path / "mine", "--model", str(tmp_path / "weights"), "--name", "chat") == 0
    model = load_release(tmp_path / "mine" / "releases" / "chat.yaml").release.model
    assert (model.id, model.source) == ("own/weights", f"file://{tmp_path / 'weights'}")


@pytest.mark.parametrize("folder", ["My Model", "tiny #1", "a%20b", "é: 'q\"", "-x.", "$HOME {y}", "ü", "x" * 120])
def test_directories_may_have_any_name(tmp_path, capsys, folder):
    above = tmp_path / folder
    above.mkdir()
    (above / folder).mkdir()
    (above / "venv #1 $x").symlink_to(sys.executable)
    given = ("--model", str(above / folder), "--model-python", str(above / "venv #1 $x"))
    assert init(above / "mine", *given) == 0
    loaded = load_release(above / "mine" / "releases" / "first.yaml")
    model = loaded.release.model
    source = open_source(model.source, loaded.deployment.hub, loaded.deployment.store)
    assert isinstance(source, DirectorySource)
    assert source.root == above / folder
    assert model.id.startswith("own/")
    assert loaded.deployment.interpreter("model") == str(above / "venv #1 $x")
    store = DirectoryStore.model_validate(
        loaded.deployment.store.model_dump(mode="json")
    )  # as a stage's request has it
    assert store.directory == above / ".llm-pipeline" / "store"
    cd = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  cd "))
    assert shlex.split(cd)[1:] == [str(above / "mine")]


def test_every_shipped_target_recipe_and_policy_is_known_in_it(tmp_path):
    init(tmp_path / "mine", "--model", "organisation/name")
    for folder in ("targets", "quantization", "policies"):
        names = {path.stem for path in (shipped_configs() / folder).iterdir()}
        assert names
        assert names <= set(names_in(tmp_path / "mine", folder))
    assert [path.name for path in (tmp_path / "mine" / "targets").iterdir()] == ["cpu.yaml"]


def test_nothing_is_written_over(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert init(tmp_path, "--model", "organisation/name") == 4
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("named", [".", "../here"])
def test_a_directory_that_is_there_and_empty_stays_the_same_one(tmp_path, monkeypatch, capsys, named):
    here = tmp_path / "here"
    here.mkdir()
    before = here.stat().st_ino
    monkeypatch.chdir(here)
    assert init(Path(named), "--model", "organisation/name") == 0
    assert here.stat().st_ino == before
    assert sorted(path.name for path in here.iterdir()) == [
        "dags", "deployments", "policies", "releases", "targets", "workloads"
    ]  # fmt: skip
    assert load_release(Path("releases/first.yaml"))
    assert "\n  cd " not in capsys.readouterr().out


@pytest.mark.parametrize(
    "choices",
    [("--model", "name"), ("--model", "a/b/c"), ("--model", "./missing"), ("--model", "a/b", "--name", "not a name")],
)
def test_what_no_release_config_could_hold_is_refused_and_nothing_is_left(tmp_path, capsys, choices):
    assert init(tmp_path / "mine", *choices) == 4
    said = capsys.readouterr().err
    assert said.startswith(f"error: {choices[-2]}: '{choices[-1]}' is")
    assert len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_its_dags_folder_makes_the_dag_of_its_release(tmp_path):
    pytest.importorskip("airflow")
    init(tmp_path / "mine", "--model", "organisation/name", "--name", "chat")
    sees = "import runpy; print(sorted(name for name in runpy.run_path('dags/releases.py') if '__' in name.strip('_')))"
    environment = {"AIRFLOW_HOME": str(tmp_path / "airflow"), "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}"}
    command = [sys.executable, "-W", "ignore", "-c", sees]
    answer = subprocess.run(
        command, cwd=tmp_path / "mine", env=environment, capture_output=True, text=True, check=False
    )
    assert answer.stdout.splitlines()[-1:] == [
        "['guard__local', 'release__chat', 'retention__local', 'rollback__local', 'verify__local']"
    ]
