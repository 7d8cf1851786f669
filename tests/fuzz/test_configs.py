"""Whatever a config file holds: `plan` makes a plan, or ends with 4 and one error that names the file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from mutations import documents

from llm_pipeline.cli import main
from llm_pipeline.errors import ExitCode

ROOT = Path(__file__).parents[2]
RELEASE = "releases/llama-3.1-8b-instruct.yaml"
FILES = (
    RELEASE,
    "targets/h100.yaml",
    "policies/production.yaml",
    "deployments/gpu-cluster.yaml",
    "quantization/fp8_kv_fp8_chat.yaml",
)


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(ROOT / "configs", tmp_path_factory.mktemp("fuzz") / "configs"))


@pytest.mark.parametrize("name", FILES)
def test_any_content_of_a_config_is_planned_or_refused(configs: Path, fuzz, capsys, name: str) -> None:
    path = configs / name
    sound = path.read_bytes()

    def check(content: bytes) -> None:
        path.write_bytes(content)
        try:
            code = main(["plan", str(configs / RELEASE)])
        finally:
            path.write_bytes(sound)
        told = capsys.readouterr()
        assert code in (ExitCode.GO, ExitCode.BAD_INPUT), told.err
        if code == ExitCode.BAD_INPUT:
            assert told.err.count("error: ") >= 1
            assert "Traceback" not in told.err
            assert len(told.err) < 20_000

    fuzz(documents(yaml.safe_load(sound)), check, 8, 1_000)
