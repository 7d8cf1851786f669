"""Write a project: `releases/`, `targets/`, `quantization/` and the rest of a configs directory, and `dags/`."""

from __future__ import annotations

import json
import re
import shutil
import string
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import TypeAdapter, ValidationError

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.files import shipped_configs
from llm_pipeline.config.model import HubId, Name
from llm_pipeline.release.loading import load_release

PACKAGE = "llm_pipeline.project"
_LONGEST_NAME = 96
_PLAIN_PATH = re.compile(r"[\w/.+$-]+")


@dataclass(frozen=True)
class Choices:
    """What a person chose for a project.

    Attributes:
        name: Of the release config, and of its DAG (`release__NAME`).
        model: Id on the hub, or the directory of a model.
        model_python: Interpreter that has torch, modelopt, lm-eval and OpenVINO.
        triton_home: Directory with the server's binaries.
        example: Take the demo's arithmetic tasks and prompts, which need no network and fit models trained for them.
    """

    name: str
    model: str
    model_python: Path
    triton_home: Path
    example: bool = False

    def check(self) -> None:
        """Refuse what no release config may hold.

        Raises:
            ConfigError: The model is neither a directory nor an id of the hub, or the name is no name.
        """
        if not Path(self.model).is_dir() and not _fits(HubId, self.model):
            problem = f"{self.model!r} is neither a directory nor an id of the hub"
            raise ConfigError(problem, where="--model", hint="a path that is there, or organisation/name")
        if not _fits(Name, self.name):
            problem = f"{self.name!r} is no name of a release config"
            raise ConfigError(problem, where="--name", hint="small letters, digits, and . _ - between them")

    @property
    def model_lines(self) -> str:
        """The release config's lines that say which model."""
        directory = Path(self.model)
        if directory.is_dir():
            whole = directory.resolve()
            return f"id: own/{_as_name(whole.name)}\n  source: {whole.as_uri()}"
        return f"id: {self.model}\n  revision: main # a branch, tag or commit; each release is pinned to a commit"


def write_project(directory: Path, choices: Choices) -> tuple[Path, ...]:
    """Write a project, whole or not at all; returns the files that its owner should look at.

    Raises:
        ConfigError: The directory holds something already, or a choice does not fit a release config.
        OSError: It cannot be written there.
    """
    if directory.exists() and any(directory.iterdir()):
        raise ConfigError("the directory is not empty", where=str(directory), hint="name a new one")
    choices.check()
    there = directory.exists()  # then it stays the same one: somebody's working directory, or a volume
    scratch_in = directory if there else directory.parent
    scratch_in.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=scratch_in, prefix=".init-") as scratch:
        partial = Path(scratch) / "project"
        _copy_shipped(partial, choices)
        evaluation = _template("example_evaluation.yaml" if choices.example else "evaluation.yaml").rstrip()
        interpreters = {"control": _as_yaml(Path(sys.executable)), "model": _as_yaml(choices.model_python)}
        written = (
            _write(
                partial / "releases" / f"{choices.name}.yaml",
                "release.yaml",
                model=choices.model_lines,
                evaluation=evaluation,
            ),
            _write(partial / "policies" / "first.yaml", "policy.yaml"),
            _write(
                partial / "deployments" / "local.yaml",
                "deployment.yaml",
                triton_home=_as_yaml(choices.triton_home),
                **interpreters,
            ),
        )
        load_release(written[0])
        if there:
            for path in sorted(partial.iterdir()):
                path.replace(directory / path.name)
        else:
            partial.replace(directory)
    return tuple(directory / path.relative_to(partial) for path in written)


def _copy_shipped(directory: Path, choices: Choices) -> None:
    configs = shipped_configs()
    for file in ("releases.py", "release_config_errors.py"):
        _write(directory / "dags" / file, f"{file}.template")
    (directory / "targets").mkdir()
    shutil.copy(configs / "targets" / "cpu.yaml", directory / "targets")
    workload = "demo" if choices.example else "chat-example"
    (directory / "workloads").mkdir()
    shutil.copy(configs / "workloads" / f"{workload}.jsonl", directory / "workloads" / "prompts.jsonl")
    if choices.example:
        shutil.copytree(configs / "tasks" / "demo", directory / "tasks" / "demo")


def _fits(kind: Any, text: str) -> bool:
    try:
        TypeAdapter(kind).validate_python(text)
    except ValidationError:
        return False
    return True


def _as_name(text: str) -> str:
    """A name that a hub could have, of a directory that may have any."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:_LONGEST_NAME].strip("-._") or "model"


def _as_yaml(path: Path) -> str:
    """A path as a deployment file has it, where `$` begins a variable; quoted where YAML would read something else."""
    written = str(path.absolute()).replace("$", "$$")
    return written if _PLAIN_PATH.fullmatch(written) else json.dumps(written, ensure_ascii=False)


def _write(path: Path, template: str, **values: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(string.Template(_template(template)).substitute(values), encoding="utf-8")
    return path


def _template(name: str) -> str:
    return files(PACKAGE).joinpath("templates", name).read_text(encoding="utf-8")
