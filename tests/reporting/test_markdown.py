"""The Markdown summary."""

from __future__ import annotations

from pathlib import Path

from llm_pipeline.reporting.collect import collect
from llm_pipeline.reporting.markdown import render_markdown


def test_the_summary_names_state_verdict_commit_and_every_gate(sample, promoted) -> None:
    data = collect(promoted.store, sample.RELEASE)
    text = render_markdown(data)
    assert text.startswith("## example/tiny-llama, recipe fp8: in production (GO)\n")
    assert f"`{'0a1b2c3d' * 5}`" in text
    table = text[text.index("| Gate ") : text.index("| Recipe ")]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + len(data.gates)
    assert {line.replace("\\|", "").count("|") for line in rows} == {6}


def test_text_from_outside_cannot_become_markup(sample, tmp_path: Path) -> None:
    data = collect(sample.SampleRelease(tmp_path).store, sample.RELEASE)
    hostile = "a | b\n# heading <script>x</script> [link](javascript:1) `code`"
    text = render_markdown(data.model_copy(update={"model_id": hostile}))
    first = text.splitlines()[0]
    assert "\\<script\\>" in first
    assert "\\[link\\](javascript:1)" in first
    assert "\n# heading" not in text


def test_a_release_without_gates_has_no_table(sample, tmp_path: Path) -> None:
    text = render_markdown(collect(sample.SampleRelease(tmp_path).store, sample.RELEASE))
    assert "no verdict yet" in text
    assert "| Gate" not in text
