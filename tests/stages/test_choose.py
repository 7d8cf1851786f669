"""The stage that picks the recipe."""

from __future__ import annotations

from pathlib import Path

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.release.contract import StageRequest, StageResult
from llm_pipeline.release.execute import execute


def run(tmp_path: Path, *attempts: tuple[str, str, int]) -> StageResult:
    request = StageRequest(
        release_id="demo",
        stage="choose",
        config={"attempts": [{"recipe": name, "verdict": verdict, "bytes": size} for name, verdict, size in attempts]},
        store=f"file://{tmp_path}/store",
        work_root=str(tmp_path / "work"),
    )
    outcome = execute(request)
    assert isinstance(outcome, StageResult)
    return outcome


def test_the_chosen_recipe_is_a_metric_and_the_judgement_a_gate(tmp_path: Path) -> None:
    result = run(tmp_path, ("fp8", "GO", 800), ("int4", "NO_GO", 300))
    assert result.metrics == {"recipe": "fp8"}
    assert result.judgement is not None
    assert result.judgement.verdict is Verdict.GO


def test_no_passing_recipe_stops_the_release(tmp_path: Path) -> None:
    result = run(tmp_path, ("int4", "INCONCLUSIVE", 300))
    assert result.metrics == {"recipe": None}
    assert result.judgement is not None
    assert result.judgement.verdict is Verdict.INCONCLUSIVE


def test_the_unquantized_model_is_not_released_in_place_of_a_recipe_that_failed(tmp_path: Path) -> None:
    request = StageRequest(
        release_id="demo",
        stage="choose",
        config={
            "attempts": [
                {"recipe": "int4", "summary": "quantize failed: no len()"},
                {"recipe": "none", "verdict": "GO", "bytes": 9, "quantized": False},
            ]
        },
        store=f"file://{tmp_path}/store",
        work_root=str(tmp_path / "work"),
    )
    result = execute(request)
    assert isinstance(result, StageResult)
    assert result.metrics == {"recipe": None}
    assert result.judgement is not None
    assert result.judgement.verdict is Verdict.INCONCLUSIVE
    assert "int4 could not be judged: quantize failed: no len()" in result.judgement.summary
