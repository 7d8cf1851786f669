"""The stage that picks the recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.release.contract import StageRequest, StageResult
from llm_pipeline.release.execute import execute

PASSED = {"recipe": "fp8", "verdict": "GO", "bytes": 800}
FAILED = {"recipe": "int4", "verdict": "NO_GO", "bytes": 300}
UNDECIDED = {"recipe": "int4", "verdict": "INCONCLUSIVE", "bytes": 300}
BROKEN = {"recipe": "int4", "summary": "quantize failed: no len()"}
UNQUANTIZED = {"recipe": "none", "verdict": "GO", "bytes": 9, "quantized": False}


@pytest.mark.parametrize(
    ("attempts", "recipe", "verdict", "told"),
    [
        ([PASSED, FAILED], "fp8", Verdict.GO, ""),
        ([UNDECIDED], None, Verdict.INCONCLUSIVE, ""),
        ([BROKEN, UNQUANTIZED], None, Verdict.INCONCLUSIVE, "int4 could not be judged: quantize failed: no len()"),
    ],
    ids=["one passed", "none passed", "the unquantized model is not released in place of a recipe that failed"],
)
def test_the_chosen_recipe_is_a_metric_and_the_judgement_a_gate(
    tmp_path: Path, attempts: list[dict[str, Any]], recipe: str | None, verdict: Verdict, told: str
) -> None:
    request = StageRequest(
        release_id="demo",
        stage="choose",
        config={"attempts": attempts},
        store=f"file://{tmp_path}/store",
        work_root=str(tmp_path / "work"),
    )
    result = execute(request)
    assert isinstance(result, StageResult)
    assert result.metrics == {"recipe": recipe}
    assert result.judgement is not None
    assert result.judgement.verdict is verdict
    assert told in result.judgement.summary
