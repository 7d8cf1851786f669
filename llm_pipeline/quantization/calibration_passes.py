"""The forward passes of a calibration: the largest batches first, with progress and the time that is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from llm_pipeline.base.progress import Progress
from llm_pipeline.quantization.calibration import CalibrationSet, Tokens


class CalibrationPasses:
    """What modelopt calls to send the calibration data through the model, once or several times.

    The largest batches come first: memory that is too small shows at once. The language model head is left out
    when it is not quantized: nothing that is calibrated depends on it.

    Attributes:
        running: Sequences and tokens of the forward pass that was begun last.
    """

    def __init__(self, data: CalibrationSet, batch: int) -> None:
        self.batches: Sequence[tuple[Tokens, ...]] = sorted(data.batches(batch), key=_tokens, reverse=True)
        self.running = (batch, len(data.sequences[-1]))
        self._passes = 0

    def __call__(self, model: Any) -> None:
        """One pass over all batches."""
        self._passes += 1
        progress = Progress(f"calibration pass {self._passes}", len(self.batches), "batches")
        for batch in self.batches:
            self.running = (len(batch), len(batch[0]))
            forward(model, batch)
            progress.advance()


def _tokens(batch: Sequence[Tokens]) -> int:
    return len(batch) * len(batch[0])


def forward(model: Any, batch: Sequence[Tokens]) -> None:
    """One forward pass, without gradients, without a cache and without what nothing is calibrated on."""
    with torch.no_grad():
        _calibrated_part(model)(input_ids=input_ids(model, batch), use_cache=False)


def input_ids(model: Any, batch: Sequence[Tokens]) -> torch.Tensor:
    """Token ids [sequences, tokens] where the model expects them."""
    embedding = model.get_input_embeddings().weight
    return torch.tensor(batch, device="cpu" if embedding.is_meta else embedding.device)


def _calibrated_part(model: Any) -> Any:
    head = model.get_output_embeddings()
    quantizers = (getattr(head, name, None) for name in ("input_quantizer", "weight_quantizer", "output_quantizer"))
    if head is None or any(quantizer is not None and quantizer.is_enabled for quantizer in quantizers):
        return model
    return model.base_model
