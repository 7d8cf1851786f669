"""Committed configs with one value replaced by an odd one, or by an end of its range: a plan, or one clear error."""

from __future__ import annotations

import copy
import random
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_release
from llm_pipeline.config.policy import Policy
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.ranges import range_at
from llm_pipeline.config.release import ReleaseConfig
from llm_pipeline.config.target import Target
from llm_pipeline.errors import ConfigError, Unsupported
from llm_pipeline.planning.plan import plan_release

CONFIGS = Path(__file__).parents[2] / "configs"
RELEASES = ("demo", "llama-3.1-8b-instruct-engine", "qwen2.5-7b-instruct")
MODELS: dict[str, type[BaseModel]] = {
    "releases": ReleaseConfig, "policies": Policy, "deployments": Deployment, "targets": Target,
    "quantization": QuantizationRecipe,
}  # fmt: skip
ODD = (-1, 0, 1e-300, 1e300, 2**63, float("nan"), float("inf"), "x", [], {}, None, True)
DRAWS = random.Random(15)  # noqa: S311 - the same ones each time
PLAN_SECONDS = 10.0
"""Of one plan, on a machine that does other things, too."""

Place = tuple[str | int, ...]


class Mutable:
    """A release with every default written out, in files whose values can be replaced one at a time."""

    def __init__(self, release: str, directory: Path) -> None:
        self.root = Path(shutil.copytree(CONFIGS, directory / "configs")).resolve()
        local = self.root / "deployments" / "local.yaml"
        local.write_text(re.sub(r"\S+/bin/python", sys.executable, local.read_text()))
        self.path = self.root / "releases" / f"{release}.yaml"
        loaded = load_release(self.path)
        named: dict[str, BaseModel] = {
            f"releases/{release}": loaded.config,
            f"policies/{loaded.config.policy}": loaded.release.policy,
            f"deployments/{loaded.config.deployment}": loaded.deployment,
            **{f"targets/{target.name}": target for target in loaded.release.targets},
        }
        self.files: dict[str, Any] = {name: model.model_dump(mode="json") for name, model in named.items()}
        recipes = {f"quantization/{recipe.file_name}" for recipe in loaded.release.recipes}
        self.files |= {name: yaml.safe_load((self.root / f"{name}.yaml").read_text()) for name in sorted(recipes)}
        for name in self.files:
            self.write(name, self.files[name])

    def write(self, name: str, content: Any) -> None:
        (self.root / f"{name}.yaml").write_text(yaml.safe_dump(content))

    def mutants(self) -> Iterator[tuple[str, Place, Any]]:
        """Every number, and every value that is left out, with each odd value."""
        for name, place, value in self.numbers():
            yield from ((name, place, odd) for odd in ODD if odd is not value)

    def extremes(self) -> Iterator[tuple[str, Place, Any]]:
        """Every number with both ends of its range."""
        for name, place, _ in self.numbers():
            ends = range_at(MODELS[name.partition("/")[0]], place).replace(",", "").split(" to ")
            yield from ((name, place, _end(end)) for end in ends if end)

    def numbers(self) -> Iterator[tuple[str, Place, Any]]:
        for name, content in self.files.items():
            for place, value in _leaves(content):
                if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
                    yield name, place, value

    def outcome(self, mutant: tuple[str, Place, Any], *, plan: bool) -> str:
        """What becomes of a mutant: `right`, or the name of its error. Any other exception passes through."""
        name, place, value = mutant
        self.write(name, _replaced(self.files[name], place, value))
        started = time.monotonic()
        try:
            load_release(self.path)
            if plan:
                plan_release(self.path, store_seconds=0)
        except (ConfigError, Unsupported) as error:
            return type(error).__name__
        finally:
            self.write(name, self.files[name])
            assert time.monotonic() - started < PLAN_SECONDS, mutant
        return "right"


def _end(text: str) -> int | float:
    number = float(text.removeprefix("more than ").removeprefix("less than "))
    return int(text) if re.fullmatch(r"-?\d+", text) else number


def _leaves(content: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else None
    if items is None:
        yield place, content
    for key, value in items or ():
        yield from _leaves(value, (*place, key))


def _replaced(content: Any, place: Place, value: Any) -> Any:
    changed = holder = copy.deepcopy(content)
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    return changed


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Mutable:
    return Mutable("demo", tmp_path_factory.mktemp("demo"))


def test_odd_values_load_or_are_one_clear_error(demo: Mutable):
    chosen = DRAWS.sample(list(demo.mutants()), 150)
    outcomes = {demo.outcome(mutant, plan=False) for mutant in chosen}
    assert outcomes == {"right", ConfigError.__name__}


def test_the_ends_of_ranges_are_planned_or_are_one_clear_error(demo: Mutable):
    chosen = DRAWS.sample(list(demo.extremes()), 12)
    assert {demo.outcome(mutant, plan=True) for mutant in chosen} <= {"right", "ConfigError", "Unsupported"}


@pytest.mark.thorough
@pytest.mark.parametrize("release", RELEASES)
def test_every_odd_value_and_every_end_of_a_range_is_planned_or_one_clear_error(release: str, tmp_path: Path):
    mutable = Mutable(release, tmp_path)
    for mutant in (*mutable.mutants(), *mutable.extremes()):
        assert mutable.outcome(mutant, plan=True) in {"right", "ConfigError", "Unsupported"}
