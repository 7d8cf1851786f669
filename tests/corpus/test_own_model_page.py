"""The page of one's own model: what it says is what works. `make own-model` runs it whole."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_model_page import ROOT, blocks

from llm_pipeline.base.errors import ExitCode
from llm_pipeline.cli import main
from llm_pipeline.release.loading import load_release


def test_the_release_of_the_page_is_valid_and_of_the_directory_that_is_named(tmp_path):
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    subprocess.run(["bash", "-euc", blocks()[0]], cwd=tmp_path, env={"MODEL": "/a/model", "PATH": "/usr/bin:/bin"},
                   check=True)  # fmt: skip
    loaded = load_release(tmp_path / "configs/releases/own-model.yaml")
    assert loaded.release.model.source == "file:///a/model"
    router = loaded.deployment.places["cpu"].router
    assert f"127.0.0.1:{router.port}/v1/completions" in blocks()[-1]


def on_other_ports(text: str) -> str:
    """The ports of the local deployment, where no demo of this machine listens."""
    return re.sub(r"\b18(\d{3})\b", r"12\1", text)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory as after `make environments` with a model of one's own; what runs there in the end is stopped."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (tmp_path / ".envs").symlink_to(ROOT / ".envs")
    deployment = tmp_path / "configs/deployments/local.yaml"
    deployment.write_text(on_other_ports(deployment.read_text()))
    monkeypatch.setenv("LLM_PIPELINE_DEPLOYMENT", str(deployment))
    monkeypatch.setenv("MODEL", str(tmp_path / "model"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'plugins'}")
    subprocess.run([ROOT / ".envs/model/bin/python", "-W", "ignore", ROOT / "tests/corpus/own_model.py", "model"],
                   cwd=tmp_path, check=True)  # fmt: skip
    yield tmp_path
    assert main(["stop", "--yes"]) == ExitCode.GO


@pytest.mark.thorough
def test_the_commands_release_a_model_and_what_was_packaged_is_staged_by_hand(home, capfd):
    for block in blocks():
        subprocess.run(["bash", "-euc", on_other_ports(block)], cwd=home, check=True)
    assert '"text":" 12"' in capfd.readouterr().out

    assert main(["ls", "--json"]) == ExitCode.GO
    (release,) = json.loads(capfd.readouterr().out)
    for _ in range(2):
        assert main(["start", "cpu", "--staging", release["release_id"]]) == ExitCode.GO
        told = capfd.readouterr().out
        assert re.search(r"GO: All \d+ probes passed\.", told)
    ask, _ = re.findall(r"ask it +(curl .*)", told)  # and what production's users ask
    answer = subprocess.run(["bash", "-euc", ask], check=True, capture_output=True, text=True).stdout
    assert answer.startswith("HTTP/1.1 200 OK")
    assert json.loads(answer.splitlines()[-1])["usage"]["completion_tokens"] > 0
    assert re.search(rf"staging +answers, {release['release_id']}, ", told)

    assert main(["stop", "cpu", "--staging"]) == ExitCode.GO
    assert capfd.readouterr().out.endswith("what was staged at cpu was stopped\n")
    assert main(["status"]) == ExitCode.GO
    shown = capfd.readouterr().out
    assert "cpu: healthy" in shown, "production is left alone"
    assert "staging" not in shown
