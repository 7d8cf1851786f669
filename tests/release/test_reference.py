from __future__ import annotations

import re
from pathlib import Path

from llm_pipeline.release.flow import FLOW
from llm_pipeline.release.reference import steps_table

STAGES = (Path(__file__).parents[2] / "docs" / "stages.md").read_text()


def test_the_page_has_the_table_that_the_flow_states():
    assert steps_table(FLOW) in STAGES, "run python -m llm_pipeline.release.reference, and put its table into the page"


def test_the_page_has_notes_on_every_step_in_order():
    assert re.findall(r"^- `(\w+)`: ", STAGES, re.MULTILINE) == [step.name for step in FLOW if not step.stage]
