"""Who may act on production: the operations, and the canary's own controller. Every other door calls one of them."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WRITERS: Mapping[str, frozenset[str]] = {
    "llm_pipeline.store.place_state": frozenset({"edit_place", "claim_place", "hand_over"}),
    "llm_pipeline.canary.record": frozenset({"CanaryJournal", "take_over"}),
    "llm_pipeline.canary.moving": frozenset(
        {
            "traffic_to",
            "wait_converged",
            "retire",
            "have_answering",
            "stand_down",
            "epoch_above",
            "end_canary",
            "give_back",
        }
    ),
}
"""What writes routes, slots, records of canaries and places, by the module that holds it."""

ACTING = ("llm_pipeline.operations.", "llm_pipeline.canary.")
DOORS: Mapping[str, frozenset[str]] = {
    "llm_pipeline.stages.canary": frozenset({"CanaryJournal", "claim_place"}),
}
"""The stage that runs the controller: it claims the place, and makes the controller's journal."""

SLOT_METHODS = frozenset({"ensure", "replace", "warm_up"})


@functools.cache
def modules() -> Mapping[str, ast.Module]:
    """Those of the package and of the plugin that say a word of it, by dotted name: to parse all takes seconds."""
    words = re.compile("|".join([*SLOT_METHODS, *(name for names in WRITERS.values() for name in names)]))
    found: dict[str, ast.Module] = {}
    for root, package in ((ROOT, "llm_pipeline"), (ROOT / "plugins", "llm_pipeline_airflow")):
        for path in sorted((root / package).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            if words.search(text := path.read_text()):
                found[name] = ast.parse(text)
    return found


def writers_used(tree: ast.Module) -> Iterator[str]:
    """Imported by name, or reached through the module that holds it."""
    held = {module.rpartition(".")[2]: names for module, names in WRITERS.items()}
    imported: dict[str, frozenset[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in WRITERS:
            yield from (alias.name for alias in node.names if alias.name in WRITERS[node.module])
        elif isinstance(node, ast.ImportFrom):
            found = {alias.asname or alias.name: alias.name for alias in node.names}
            whole = {as_: name for as_, name in found.items() if f"{node.module}.{name}" in WRITERS}
            imported |= {as_: held[name] for as_, name in whole.items()}
    for node in ast.walk(tree):
        reached = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if reached and node.attr in imported.get(node.value.id, frozenset()):
            yield node.attr


def slots_touched(tree: ast.Module) -> Iterator[str]:
    """Methods that start or replace a slot's server, on anything called slots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in SLOT_METHODS:
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            if owner.lstrip("_") == "slots":
                yield f"slots.{node.attr}"


def acts(name: str, tree: ast.Module) -> set[str]:
    return {*writers_used(tree), *slots_touched(tree)} - DOORS.get(name, frozenset())


def test_only_the_operations_and_the_canary_write_what_production_is() -> None:
    elsewhere = {
        name: found for name, tree in modules().items() if not name.startswith(ACTING) and (found := acts(name, tree))
    }
    assert elsewhere == {}


def test_what_writes_is_there_under_the_names_that_the_wall_knows() -> None:
    for module, names in WRITERS.items():
        defined = {node.name for node in modules()[module].body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        assert names <= defined, module


@pytest.mark.parametrize(
    "source",
    [
        "from llm_pipeline.store.place_state import edit_place",
        "from llm_pipeline.canary import moving as m\nm.traffic_to(1)",
        "def act(self):\n    self._slots.replace(1)",
    ],
)
def test_a_second_door_is_found_however_it_is_built(source: str) -> None:
    assert acts("llm_pipeline.cli.door", ast.parse(source))


def test_reading_is_nobodys_act() -> None:
    imports = "from llm_pipeline.store.place_state import read_place\nfrom llm_pipeline.canary import record"
    assert acts("llm_pipeline.cli.reader", ast.parse(f"{imports}\nrecord.read_canary_record(1)")) == set()
