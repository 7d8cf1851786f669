"""Who may act on production: the operations, and the canary's own controller. Every other door calls one of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WRITERS = {
    "store/place_state.py": ("edit_place", "claim_place", "hand_over"),
    "canary/record.py": ("CanaryJournal", "take_over"),
}
"""What writes records of canaries and places, by its file. What moves routes (`canary.moving`), `make lint` guards."""

ACTS = re.compile(rf"\b({'|'.join(sum(WRITERS.values(), ()))}|slots\.(ensure|replace|warm_up))\b")
ACTING = ("llm_pipeline/operations/", "llm_pipeline/canary/", "llm_pipeline/store/place_state.py")
DOORS = {"llm_pipeline/stages/canary.py": {"CanaryJournal", "claim_place"}}
"""The stage that runs the controller: it claims the place, and makes the controller's journal."""


def test_only_the_operations_and_the_canary_write_what_production_is() -> None:
    elsewhere = {}
    for path in (*(ROOT / "llm_pipeline").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        found = {match[0] for match in ACTS.finditer(path.read_text())} - DOORS.get(name, set())
        if found and not name.startswith(ACTING):
            elsewhere[name] = found
    assert elsewhere == {}


@pytest.mark.parametrize("file", WRITERS)
def test_what_writes_is_there_under_the_names_that_the_wall_knows(file: str) -> None:
    code = (ROOT / "llm_pipeline" / file).read_text()
    assert all(re.search(rf"^(def|class) {name}\b", code, re.MULTILINE) for name in WRITERS[file])
