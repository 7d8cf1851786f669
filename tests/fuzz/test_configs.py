"""Whatever a config file holds: `plan` makes a plan, or ends with 4 and one error that names the file."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from hypothesis import strategies as st
from mutations import HOSTILE_VALUES, documents, mutated
from written_out import write_out

from llm_pipeline.base.errors import ExitCode
from llm_pipeline.cli import main

ROOT = Path(__file__).parents[2]
RELEASE = "llama-3.1-8b-instruct"
FILES = (
    f"releases/{RELEASE}",
    "targets/h100",
    "policies/production",
    "deployments/gpu-cluster",
    "quantization/fp8_chat",
)
NUMBERS = (float("nan"), float("inf"), float("-inf"), -0.0, 1e300, 1e-300)
"""That YAML can say, and JSON cannot or says otherwise."""
PLAN_SECONDS = 30.0
"""Of CPU time for one plan: a busy machine does not count."""


class Configs(NamedTuple):
    """A private copy of the configs, with the contents of the release's files, every default written out."""

    root: Path
    contents: dict[str, Any]


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Configs:
    root = Path(shutil.copytree(ROOT / "configs", tmp_path_factory.mktemp("fuzz") / "configs"))
    return Configs(root, write_out(root, RELEASE))


def yaml_texts(value: Any) -> st.SearchStrategy[bytes]:
    """Documents, and mutated values as YAML says them."""
    as_yaml = mutated(value, (*HOSTILE_VALUES, *NUMBERS)).map(lambda changed: yaml.safe_dump(changed).encode())
    return st.one_of(as_yaml, documents(value))


@pytest.mark.parametrize("name", FILES)
def test_any_content_of_a_config_is_planned_or_refused(configs: Configs, fuzz, capsys, monkeypatch, name: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # a config without sizes asks the hub
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # the client has read it already
    path = configs.root / f"{name}.yaml"
    sound = path.read_bytes()

    def check(content: bytes) -> None:
        path.write_bytes(content)
        started = time.process_time()
        try:
            code = main(["plan", str(configs.root / "releases" / f"{RELEASE}.yaml")])
        finally:
            path.write_bytes(sound)
        assert time.process_time() - started < PLAN_SECONDS
        told = capsys.readouterr()
        asked_the_hub = "the hub's client is in offline mode" in told.err
        refused = ExitCode.INFRASTRUCTURE if asked_the_hub else ExitCode.BAD_INPUT
        assert code in (ExitCode.GO, refused), told.err
        if code != ExitCode.GO:
            assert told.err.count("error: ") >= 1
            assert "Traceback" not in told.err
            assert len(told.err) < 25_000  # twenty mistakes

    fuzz(yaml_texts(configs.contents[name]), check, 12, 1_000)
