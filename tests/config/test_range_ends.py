"""Every number of the committed configs at both ends of its range: a plan, or one clear error, in a short time.

What else stands in place of a value, `tests/fuzz/test_configs.py` tries.
"""

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

sys.path.insert(0, str(Path(__file__).parents[1]))

from written_out import write_out

from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.policy import Policy
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.ranges import range_at
from llm_pipeline.config.release import ReleaseConfig
from llm_pipeline.config.target import Target
from llm_pipeline.planning.plan import plan_release

CONFIGS = Path(__file__).parents[2] / "configs"
RELEASES = ("demo", "llama-3.1-8b-instruct-engine", "qwen2.5-7b-instruct")
MODELS: dict[str, type[BaseModel]] = {
    "releases": ReleaseConfig, "policies": Policy, "deployments": Deployment, "targets": Target,
    "quantization": QuantizationRecipe,
}  # fmt: skip
DRAWS = random.Random(15)  # noqa: S311 - the same ones each time
PLAN_SECONDS = 30.0
"""Of CPU time for one plan: a busy machine does not count."""

Place = tuple[str | int, ...]
Mutant = tuple[str, Place, int | float]
"""A file's name, a place in it, and what stands there now."""


class Mutable:
    """A release in files whose values can be replaced one at a time."""

    def __init__(self, release: str, directory: Path) -> None:
        self._root = Path(shutil.copytree(CONFIGS, directory / "configs")).resolve()
        self._path = self._root / "releases" / f"{release}.yaml"
        self._files = write_out(self._root, release)

    def extremes(self) -> Iterator[Mutant]:
        """Every number, and every value that is left out, with both ends of its range."""
        for name, content in self._files.items():
            for place, value in _leaves(content):
                if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
                    ends = range_at(MODELS[name.partition("/")[0]], place).replace(",", "").split(" to ")
                    yield from ((name, place, _end(end)) for end in ends if end)

    def outcome(self, mutant: Mutant) -> str:
        """What becomes of a mutant: `right`, or the name of its error. Any other exception passes through."""
        name, place, value = mutant
        self._write(name, _replaced(self._files[name], place, value))
        started = time.process_time()
        try:
            plan_release(self._path, store_seconds=0, source_seconds=0)
        except (ConfigError, Unsupported) as error:
            return type(error).__name__
        finally:
            self._write(name, self._files[name])
            assert time.process_time() - started < PLAN_SECONDS, mutant
        return "right"

    def _write(self, name: str, content: Any) -> None:
        (self._root / f"{name}.yaml").write_text(yaml.safe_dump(content))


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


def test_the_ends_of_ranges_are_planned_or_are_one_clear_error(tmp_path: Path):
    mutable = Mutable("demo", tmp_path)
    chosen = DRAWS.sample(list(mutable.extremes()), 12)
    assert {mutable.outcome(mutant) for mutant in chosen} <= {"right", "ConfigError", "Unsupported"}


@pytest.mark.thorough
@pytest.mark.parametrize("release", RELEASES)
def test_every_end_of_a_range_is_planned_or_one_clear_error(release: str, tmp_path: Path):
    mutable = Mutable(release, tmp_path)
    assert {mutable.outcome(mutant) for mutant in mutable.extremes()} <= {"right", "ConfigError", "Unsupported"}
