"""Where the release configs are: one folder or several, by whole paths or beside the DAG files of each bundle."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path

import airflow
import jsonschema
import pytest
from llm_pipeline_airflow import web
from llm_pipeline_airflow.bundle import ReleaseDagBundle
from llm_pipeline_airflow.discovery import all_dags, check_release_configs
from llm_pipeline_airflow.provider import get_provider_info
from llm_pipeline_airflow.settings import RELEASES_DEFAULT, config_path_of, release_folders

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.release.loading import load_config

BUNDLES = "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"
RELEASES = "AIRFLOW__LLM_PIPELINE__RELEASES"
LOCAL = "airflow.dag_processing.bundles.local.LocalDagBundle"


@pytest.fixture
def teams(project, tmp_path, monkeypatch) -> dict[str, Path]:
    """Two DAG bundles, each with release configs of its own in `releases/`."""
    made = {}
    for team in ("red", "blue"):
        root = made[team] = tmp_path / "teams" / team
        shutil.copytree(project.config.parents[1], root)
        (root / "releases" / "tiny.yaml").rename(root / "releases" / f"{team}.yaml")
        here = root / "deployments" / "here.yaml"
        here.rename(here.with_stem(f"{team}-host"))
        release = root / "releases" / f"{team}.yaml"
        release.write_text(release.read_text().replace("deployment: here", f"deployment: {team}-host"))
        (root / "dags").mkdir()
        (root / "dags" / "releases.py").write_text("# a DAG file of Airflow\n")
    bundles = [{"name": name, "classpath": LOCAL, "kwargs": {"path": str(root)}} for name, root in made.items()]
    monkeypatch.setenv(BUNDLES, json.dumps(bundles))
    monkeypatch.delenv(RELEASES, raising=False)
    return made


def test_the_dags_of_a_bundle_are_those_of_the_configs_beside_them(teams):
    dags = all_dags(str(teams["red"] / "dags" / "releases.py"))
    assert set(dags) == {
        "release__red",
        "guard__red-host",
        "rollback__red-host",
        "retention__red-host",
        "verify__red-host",
    }


def test_the_pages_know_the_releases_of_every_bundle(teams, pages_for_everybody):
    assert {path.stem for path in web._readable_configs(None)} == {"red", "blue"}
    assert config_path_of("release__blue") == teams["blue"] / "releases" / "blue.yaml"
    with pytest.raises(ConfigError, match="'release__green' is not the DAG"):
        config_path_of("release__green")
    for team in teams:
        store = load_config(config_path_of(f"release__{team}")).deployment.store
        Path(store.directory).mkdir(parents=True, exist_ok=True)
        assert "No report yet" in pages_for_everybody.get(f"/dags/release__{team}/runs/manual/report").text


def test_a_bundle_that_cannot_be_had_hides_no_other(teams, monkeypatch, caplog):
    kwargs = {"gone": {"path": None, "odd": 1}, "red": {"path": str(teams["red"])}}
    bundles = [{"name": name, "classpath": LOCAL, "kwargs": given} for name, given in kwargs.items()]
    monkeypatch.setenv(BUNDLES, json.dumps(bundles))
    assert release_folders() == (teams["red"] / "releases",)
    assert "the DAG bundle gone cannot be read here" in caplog.text


def test_two_configs_or_deployments_of_one_name_are_refused(teams):
    red, blue = (root / "releases" for root in teams.values())
    shutil.copy(red / "red.yaml", blue / "red.yaml")
    shutil.copy(red.parent / "deployments" / "red-host.yaml", blue.parent / "deployments" / "red-host.yaml")
    with pytest.raises(ConfigError) as refused:
        check_release_configs((red, blue))
    assert f"{blue / 'red.yaml'}: two release configs are named red" in str(refused.value)
    assert "two deployments are named red-host" in str(refused.value)


def test_no_folder_at_all_is_an_error_that_says_what_to_set(tmp_path, monkeypatch):
    monkeypatch.setenv(RELEASES, "nowhere-at-all")
    folders = release_folders(tmp_path / "dags" / "releases.py")
    assert folders == ()
    with pytest.raises(ConfigError, match="no directory of release configs: neither nowhere-at-all") as refused:
        check_release_configs(folders)
    assert "AIRFLOW__LLM_PIPELINE__RELEASES" in refused.value.hint
    with pytest.raises(ConfigError, match="no such directory"):
        check_release_configs((tmp_path / "nowhere",))


def test_the_packages_bundle_holds_dags_that_follow_the_option(teams, monkeypatch):
    monkeypatch.setenv(RELEASES, str(teams["red"] / "releases"))
    files = {file.stem: file for file in ReleaseDagBundle(name="llm-pipeline").path.glob("*.py")}
    assert set(files) == {"releases", "release_config_errors"}
    assert {"release__red", "guard__red-host"} <= set(runpy.run_path(str(files["releases"])))


def test_the_providers_info_lists_the_option_as_airflow_asks_for_it():
    info = get_provider_info()
    schema = json.loads((Path(airflow.__path__[0]) / "provider_info.schema.json").read_text())
    jsonschema.validate(info, schema)
    assert info["config"]["llm_pipeline"]["options"]["releases"]["default"] == RELEASES_DEFAULT
