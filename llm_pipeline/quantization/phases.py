"""The steps of quantizing a checkpoint, each done once: what an earlier attempt finished is not done again.

    calibrate (or find the calibration in the store) -> save it there -> export -> validate

An attempt may end anywhere, killed by anybody. What it finished lies in the work directory under its final name, and
the calibration in the store, where other machines, other exports and other rungs of a search find it, too.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llm_pipeline.base.durable import replace_durably, sync_file_system
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Metric
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.quantization.calibration_store import Origin, shared_calibration
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.provenance import Provenance

if TYPE_CHECKING:
    from llm_pipeline.quantization.modelopt_quantizer import Quantizer

log = get_logger(__name__)

_FACTS = "facts.json"


@dataclass(frozen=True)
class Steps:
    """The steps of one recipe in one work directory.

    Attributes:
        workdir: Private to this checkpoint and recipe; survives a kill.
        store: Where the calibration is shared.
        recipe: What is done.
        key: The calibration's; empty for a recipe without calibration.
        provenance: Of the calibration.
    """

    workdir: Path
    store: ArtifactStore
    recipe: QuantizationRecipe
    key: str
    provenance: Provenance

    @property
    def checkpoint(self) -> Path:
        """Directory of the exported Hugging Face checkpoint."""
        return self.workdir / "checkpoint"

    @property
    def tensorrt_llm_checkpoint(self) -> Path:
        """Directory of the TensorRT-LLM checkpoint, for recipes that ask for one."""
        return self.workdir / "tensorrt_llm_checkpoint"

    @property
    def exported(self) -> bool:
        """Whether an earlier attempt got as far as validation, and not so far that a store took its exports."""
        exports = [self.checkpoint, *([self.tensorrt_llm_checkpoint] if self.recipe.tensorrt_llm_checkpoint else ())]
        return (self.workdir / _FACTS).is_file() and all(directory.is_dir() for directory in exports)

    def calibration(self, quantizer: Quantizer) -> tuple[Path | None, Origin | None]:
        """The calibration's state; None for a recipe without."""
        if self.recipe.calibration is None:
            return None, None
        directory = self.workdir / "calibration"
        shutil.rmtree(directory.with_name(f"{directory.name}.partial"), ignore_errors=True)
        return shared_calibration(self.store, self.key, directory, quantizer.calibrate, self.provenance)

    def export(self, quantizer: Quantizer, state: Path | None) -> None:
        """All that the recipe asks for; the next attempt finds it once there are `facts` about it."""
        (self.workdir / _FACTS).unlink(missing_ok=True)
        for directory in (self.checkpoint, self.tensorrt_llm_checkpoint):
            shutil.rmtree(directory, ignore_errors=True)
        if self.recipe.tensorrt_llm_checkpoint:
            quantizer.export_tensorrt_llm(self.tensorrt_llm_checkpoint, state)
        quantizer.export(self.checkpoint, state)

    def keep_export(self, facts: Mapping[str, Metric]) -> None:
        """Write down facts about the exports: they say that the exports are whole, also after a power cut."""
        began = time.monotonic()
        sync_file_system(self.workdir)
        log.info("the export is on disk", seconds=round(time.monotonic() - began, 3))
        replace_durably(self.workdir / _FACTS, json.dumps(dict(facts)).encode())

    def discard_export(self) -> None:
        """Let the next attempt export again."""
        (self.workdir / _FACTS).unlink(missing_ok=True)

    def facts(self) -> dict[str, Metric]:
        """Facts about the exports, written down by whichever attempt made them."""
        written: dict[str, Metric] = json.loads((self.workdir / _FACTS).read_text())
        return written
