"""The page of one's own model: what it says is what works. `make own-model` runs it whole."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from own_model_page import PAGE, ROOT, blocks

from llm_pipeline.cli import main
from llm_pipeline.config.loading import load_release


def test_the_first_answer_is_six_commands_from_a_clone():
    before = PAGE.read_text().partition("```bash")[0].split("```")[1].strip()
    assert len(before.splitlines()) + len(blocks()) == 6
    assert before.startswith("git clone")
    assert "curl" in blocks()[-1]


def test_the_release_of_the_page_is_valid_and_of_the_directory_that_is_named(tmp_path):
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    subprocess.run(["bash", "-euc", blocks()[0]], cwd=tmp_path, env={"MODEL": "/a/model", "PATH": "/usr/bin:/bin"},
                   check=True)  # fmt: skip
    loaded = load_release(tmp_path / "configs/releases/own-model.yaml")
    assert loaded.release.model.source == "file:///a/model"
    router = loaded.deployment.places["cpu"].router
    assert f"127.0.0.1:{router.port}/v2/models/llm/generate" in blocks()[-1]


def test_commands_of_the_page_are_commands(capsys):
    commands = re.findall(r"llm-pipeline (\w+) configs", "\n".join(blocks()))
    assert commands == ["plan", "run"]
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
    assert "--approve" in capsys.readouterr().out
