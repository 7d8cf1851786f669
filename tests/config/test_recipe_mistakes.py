"""A wrong quantization recipe is one clear error, with the file and the line, before anything is spent."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.planning.plan import plan_release
from llm_pipeline.release.loading import load_release

CALIBRATION = """
calibration:
  sources: [calibration/demo.jsonl]
  samples: 16
  maximum_tokens: 64
"""


def mistake_in(configs: Path, text: str) -> tuple[str, Path]:
    """What loading a release says of a recipe."""
    path = configs / "quantization" / "int4_awq.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_release(configs / "releases" / "demo.yaml")
    return str(caught.value), path


AUTO = "weights: auto\nsearch:\n"


@pytest.mark.parametrize(
    ("text", "line", "fragments"),
    [
        ("weights: int5\n", 1, ("weights: Input should be", "'int5'")),
        ("weights: fp8\n", 1, ("fp8 has calibrated scales: add a calibration section",)),
        (f"weights: int4_blockwise{CALIBRATION}", 1, ("uses no calibration: remove",)),
        ("weights: none\ntensorrt_llm_ranks: { tensor: 2 }\n", 1, ("tensorrt_llm_ranks is for recipes with",)),
        (f"weights: auto{CALIBRATION}", 1, ("auto and a search section belong together",)),
        (f"{AUTO}  effective_bits: [6.0]{CALIBRATION}", 2, ("missing key search.formats",)),
        (f"{AUTO}  formats: []\n  effective_bits: [6.0]{CALIBRATION}", 3, ("search.formats", "at least 1")),
        (f"{AUTO}  formats: [fp8_block]\n  effective_bits: [9.0]{CALIBRATION}", 3, ("search.formats.0", "'fp8_block'")),
        (f"{AUTO}  formats: [int4_awq, fp8]\n  effective_bits: [6.0, 3.5]{CALIBRATION}", 2,
         ("effective_bits must rise",)),
        (f"{AUTO}  formats: [int4_awq, fp8]\n  effective_bits: [3.5, 6.0]{CALIBRATION}", 2,
         ("search: 3.5 bits cannot be reached: int4_awq has 4",)),
        (f"weights: fp8{CALIBRATION}".replace("calibration/demo.jsonl", "'set:cnn_dailymial'"), 3,
         ("no calibration set set:cnn_dailymial", "did you mean set:cnn_dailymail?")),
        (f"weights: fp8{CALIBRATION}".replace("calibration/demo.jsonl", "'set:ultrachat'"), 3,
         ("set:ultrachat holds chats", "chat_template: true")),
        (f"weights: fp8{CALIBRATION}".replace("demo.jsonl]", f"demo.jsonl{', set:wikitext' * 16}]"), 2,
         ("calibration: 16 samples are fewer than the sources",)),
    ],
)  # fmt: skip
def test_a_wrong_recipe_is_told_with_its_line(configs: Path, text: str, line: int, fragments: tuple[str, ...]):
    message, path = mistake_in(configs, text)
    assert message.startswith(f"{path}:{line}: "), message
    assert message.count(".yaml:") == 1
    for fragment in fragments:
        assert fragment in message, message


def test_plan_finds_a_bad_line_of_the_calibration_set(configs: Path):
    path = configs / "calibration" / "demo.jsonl"
    path.write_bytes(b'{"text": "one"}\n\n{"text": "\xe9"}\n')
    with pytest.raises(ConfigError, match="not UTF-8") as error:
        plan_release(configs / "releases" / "demo.yaml")
    assert error.value.where == f"{path}:3"
