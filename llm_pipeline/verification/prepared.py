"""What the model image hands to the serving image: checkpoints, and what each of them answers."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from llm_pipeline.base.errors import IntegrityError, unless_io
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.engines.builder import BaselinePrecision

PREPARED_FILE = "prepared.json"
CHECKPOINT_DIRECTORY = "checkpoint"
TENSORRT_LLM_DIRECTORY = "tensorrt_llm_checkpoint"


class PreparedCheckpoint(Frozen):
    """One checkpoint, in the directory of its recipe's name, with its golden prompts beside it.

    Attributes:
        recipe: How it was quantized.
        refused: Why it could not be made; empty when it was.
    """

    recipe: QuantizationRecipe
    refused: str = ""

    @property
    def name(self) -> str:
        """Its recipe's name."""
        return self.recipe.name


class Prepared(Frozen):
    """The content of `prepared.json`.

    Attributes:
        model: The hub's name and commit, or what was trained.
        dtype: Precision of the baseline.
        checkpoints: One for each recipe; the first is the baseline, and one is for the engine compiler.
    """

    model: str
    dtype: BaselinePrecision
    checkpoints: tuple[PreparedCheckpoint, ...]

    def write(self, directory: Path) -> None:
        """Write it into the directory of the checkpoints."""
        (directory / PREPARED_FILE).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def read(directory: Path) -> Prepared:
        """Read it.

        Raises:
            IntegrityError: It is missing or not one.
        """
        path = directory / PREPARED_FILE
        try:
            return Prepared.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise unless_io(error, IntegrityError(f"nothing was prepared here: {error}", where=str(path))) from error
