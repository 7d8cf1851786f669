"""Every architecture with every recipe of a CPU: served as it was judged, or refused by `plan`. About an hour."""

from __future__ import annotations

import re

import matrix
import pytest

pytest.importorskip("tritonclient")


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("model", matrix.MODELS)
def test_an_architecture_works_or_is_refused_and_the_page_says_which(model, tmp_path):
    recipes = matrix.recipes_for(model, matrix.cpu_recipes())
    with matrix.Matrix(tmp_path) as tried:
        tried.make([model])
        found = {outcome.recipe: outcome for outcome in tried.judge(model, recipes)}
    wrong = [one for one in found.values() if not one.refused and not matrix.works(one, recipes[one.recipe])]
    row = next(line for line in matrix.TABLE.read_text().splitlines() if line.startswith(f"| {model} |"))
    assert [one for one in wrong if one.failed] == []
    assert len(wrong) <= row.count("DIFFERS"), wrong
    named = re.split(", |; ", re.sub(r" \[\d+\]", "", row.split(" | ")[2].removesuffix(" |")))
    refused = sorted(name for name, one in found.items() if one.refused)
    assert sorted(found if named == ["all"] else named) == (refused or [""]), row
