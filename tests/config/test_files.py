"""Files of a configuration: one's own, the package's, `.yaml` and `.yml`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.files import shipped_configs
from llm_pipeline.planning.release_checks import check_data_files
from llm_pipeline.release.loading import load_release


@pytest.fixture
def own(configs: Path) -> Path:
    """A configuration that holds nothing that the package has, but what it names it by."""
    for folder in ("calibration", "policies", "quantization", "targets"):
        shutil.rmtree(configs / folder)
    return configs


def test_recipes_targets_policies_and_calibration_come_with_the_package(own):
    loaded = load_release(own / "releases" / "demo.yaml")
    assert loaded.release.targets[0].name == "cpu"
    assert loaded.file_of("targets", "cpu") == shipped_configs() / "targets" / "cpu.yaml"
    assert loaded.data_file("calibration/demo.jsonl") == shipped_configs() / "calibration" / "demo.jsonl"
    check_data_files(loaded)


def test_a_file_of_ones_own_takes_the_place_of_the_packages(own):
    (own / "targets").mkdir()
    text = (shipped_configs() / "targets" / "cpu.yaml").read_text()
    (own / "targets" / "cpu.yaml").write_text(text.replace("threads: 1", "threads: 3"))
    (own / "calibration").mkdir()
    shutil.copy(shipped_configs() / "calibration" / "demo.jsonl", own / "calibration")
    loaded = load_release(own / "releases" / "demo.yaml")
    assert loaded.release.targets[0].limits.threads == 3
    assert loaded.data_file("calibration/demo.jsonl") == own / "calibration" / "demo.jsonl"


def test_a_release_or_a_deployment_of_the_package_is_nobodys(own):
    (own / "deployments" / "local.yaml").unlink()
    with pytest.raises(ConfigError, match=r"deployment: there is no deployments/local\.yaml"):
        load_release(own / "releases" / "demo.yaml")


def test_what_is_nowhere_is_told_with_what_is_there(own):
    release = own / "releases" / "demo.yaml"
    release.write_text(release.read_text().replace("targets: [cpu]", "targets: [gpu9]"))
    (own / "targets").mkdir()
    (own / "targets" / "mine.yml").write_text("accelerator: cpu\n")
    with pytest.raises(ConfigError, match=r"there is no targets/gpu9\.yaml") as refused:
        load_release(release)
    assert "h100" in refused.value.hint
    assert "mine" in refused.value.hint


def test_two_files_of_one_name_are_refused(configs):
    shutil.copy(configs / "targets" / "cpu.yaml", configs / "targets" / "cpu.yml")
    with pytest.raises(ConfigError, match=r"there is cpu\.yml as well") as refused:
        load_release(configs / "releases" / "demo.yaml")
    assert refused.value.where == str(configs / "targets" / "cpu.yaml")
