from __future__ import annotations

from pathlib import Path

from llm_pipeline.release.flow import FLOW
from llm_pipeline.release.reference import reference

STAGES = Path(__file__).parents[2] / "docs" / "stages.md"


def test_the_committed_reference_is_what_the_flow_states():
    remedy = "run python -m llm_pipeline.release.reference > docs/stages.md"
    assert STAGES.read_text() == reference(FLOW), remedy


def test_every_step_has_a_section_with_its_words():
    text = reference(FLOW)
    assert all(f"## `{step.name}`: {step.title}\n\n{step.words}" in text for step in FLOW)
