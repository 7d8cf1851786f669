"""The pages of documentation: their links, commands, options, configuration and error texts are real."""

from __future__ import annotations

import argparse
import ast
import configparser
import json
import re
import shlex
import textwrap
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from llm_pipeline.base.adapters import _OURS
from llm_pipeline.base.errors import ExitCode
from llm_pipeline.cli import _parser, main
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.config.policy import Policy
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.release import ReleaseConfig
from llm_pipeline.config.target import Target

ROOT = Path(__file__).parents[1]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")])
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text() for page in PAGES}
ROLES = ("jobs", "staging", "routers")
FRAGMENTS = {
    "release": (ReleaseConfig, "releases/demo.yaml"),
    "policy": (Policy, "policies/demo.yaml"),
    "deployment": (Deployment, "deployments/local.yaml"),
    "target": (Target, "targets/cpu.yaml"),
    "recipe": (QuantizationRecipe, None),
}
"""What a block of YAML is a part of, by the second word of its fence, and the file that it is put into."""

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_FENCED = re.compile(r"^ *```(\S*) ?([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"llm-pipeline +([a-z][a-z-]*)([^`\n|#;,]*)")
_OPTION = re.compile(r"--?[a-z][a-z-]*")


def _anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = _HEADING.findall(re.sub(_FENCED, "", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", TEXTS)
def test_every_link_leads_to_a_file_and_an_anchor(page: str) -> None:
    for target in _LINK.findall(TEXTS[page]):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert file.exists(), target
        if anchor:
            assert anchor in _anchors(file.read_text()), target


def test_every_page_is_in_the_index() -> None:
    index = set(_LINK.findall(TEXTS["docs/README.md"]))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"} <= index


def test_the_readme_stays_short() -> None:
    assert len(TEXTS["README.md"].splitlines()) <= 150


@cache
def _commands() -> dict[str, argparse.ArgumentParser]:
    (commands,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(commands.choices)


@pytest.mark.parametrize("page", TEXTS)
def test_every_command_of_a_page_exists_with_its_options(page: str) -> None:
    for name, rest in _COMMAND.findall(TEXTS[page]):
        assert name in _commands(), f"llm-pipeline {name}"
        known = _commands()[name]._option_string_actions
        assert not [option for option in _OPTION.findall(re.sub(r"\S+/\S+", "", rest)) if option not in known], (
            f"llm-pipeline {name}{rest}"
        )


def test_every_command_is_on_the_page_of_commands() -> None:
    assert set(_commands()) == {name for name, _ in _COMMAND.findall(TEXTS["docs/commands.md"])}


def _blocks(*languages: str) -> list[tuple[str, str, str]]:
    return [
        (page, kind.strip(), textwrap.dedent(block))
        for page, text in TEXTS.items()
        for language, kind, block in _FENCED.findall(text)
        if language in languages
    ]


def test_the_roles_that_a_cluster_needs_are_valid() -> None:
    roles = [role for _, kind, block in _blocks("yaml") if kind == "role" for role in yaml.safe_load_all(block)]
    assert {role["metadata"]["name"] for role in roles} == {f"llm-pipeline-{name}" for name in ROLES}
    for role in roles:
        kubernetes_validate.validate(role, "1.37", strict=True)


@pytest.mark.parametrize(("page", "kind", "block"), [one for one in _blocks("yaml") if one[1] != "role"])
def test_every_block_of_configuration_loads(page: str, kind: str, block: str, tmp_path: Path) -> None:
    model, file = FRAGMENTS[kind]
    whole = yaml.safe_load((ROOT / "configs" / file).read_text()) if file else {}
    whole.pop("name", None)  # that of its file
    for key, value in yaml.safe_load(block).items():
        whole[key] = whole[key] | value if isinstance(value, dict) and isinstance(whole.get(key), dict) else value
    if kind == "release":  # the demo's ranges are for its own tasks
        tasks = whole["evaluation"]["tasks"]
        whole["baseline"]["expected"] = {} if "evaluation" in block else whole["baseline"]["expected"]
        whole["evaluation"]["tasks"] = [*tasks, *(set(whole["baseline"]["expected"]) - set(tasks))]
    written = tmp_path / "example.yaml"
    written.write_text(yaml.safe_dump(whole))
    assert load_yaml(written, model)


def _needs_no_release(words: list[str]) -> bool:
    if words[0] == "plan":
        return (ROOT / words[1]).is_file()
    return words[0] in ("init", "ls", "schema")


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (page, words)
        for page, _, block in _blocks("bash", "console", "")
        for found in re.finditer(r"^(?:\S*/)?llm-pipeline +(.+)$", block, re.MULTILINE)
        if _needs_no_release(words := shlex.split(found[1], comments=True))
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_every_command_of_a_page_that_needs_no_release_runs(
    page: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "project", "--model", "organisation/name"]) == ExitCode.GO
    monkeypatch.setenv("LLM_PIPELINE_DEPLOYMENT", str(tmp_path / "project/deployments/local.yaml"))
    capsys.readouterr()
    if any("configs/" in word for word in words):
        monkeypatch.chdir(ROOT)
    meant = {"MODEL": "organisation/name"}
    code = main([meant.get(word, word) for word in words if word != "--follow"])  # else it would go on for ever
    assert code == ExitCode.GO
    assert capsys.readouterr().out or "--json" in words  # no events are no lines of JSON


def _ini(text: str) -> None:
    configparser.ConfigParser(interpolation=None).read_string(text)


_READERS: dict[str, Callable[[str], object]] = {
    "json": json.loads, "ini": _ini, "toml": tomllib.loads, "python": ast.parse
}  # fmt: skip


@pytest.mark.parametrize(
    ("language", "block"), [(language, block) for language in _READERS for _, _, block in _blocks(language)]
)
def test_every_other_block_can_be_read(language: str, block: str) -> None:
    _READERS[language](block)


def test_the_line_for_a_dag_file_makes_the_dags_of_the_configs_beside_it() -> None:
    pytest.importorskip("airflow")
    (block,) = (block for _, kind, block in _blocks("python") if kind == "dag")
    names: dict[str, object] = {"__file__": str(ROOT / "configs" / "releases.py")}
    exec(compile(block, "install.md", "exec"), names)  # noqa: S102 - our own page
    assert "release__demo" in names


def test_the_examples_of_the_architecture_run_and_its_paths_exist() -> None:
    page = TEXTS["ARCHITECTURE.md"]
    blocks = [block for language, _, block in _FENCED.findall(page) if language == "python"]
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "ARCHITECTURE.md", "exec"), names)  # noqa: S102 - our own page
    paths = re.findall(r"`((?:llm_pipeline|tests|configs|plugins|dags|docker)/[\w./*-]+)`", page)
    assert not [path for path in paths if not list(ROOT.glob(path.rstrip("/")))]


PAGES_OF_ADAPTERS = {
    "engines": "targets",
    "routers": "canary",
    "metric_sources": "canary",
    "server_controls": "staging",
    "runners": "cluster",
    "stores": "store",
}


def test_every_adapter_is_on_the_page_of_its_users() -> None:
    assert set(PAGES_OF_ADAPTERS) == set(_OURS)
    for group, kinds in _OURS.items():
        page = TEXTS[f"docs/{PAGES_OF_ADAPTERS[group]}.md"]
        assert not [kind for kind in kinds if not re.search(rf"`(\w+: )?{kind}(://[^`]*|:///[^`]*)?`", page)], group
