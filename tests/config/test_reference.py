from pathlib import Path

from llm_pipeline.config.reference import reference

_FILE = Path(__file__).parents[2] / "configs" / "REFERENCE.md"


def test_the_committed_reference_is_what_the_models_say() -> None:
    assert _FILE.read_text() == reference(), "run: python -m llm_pipeline.config.reference > configs/REFERENCE.md"
