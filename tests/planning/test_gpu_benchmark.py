"""The release benchmark's engines of 8B fit the cards that it names, as many side by side as it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpu import release_files
from llm_pipeline.catalog.tables import find_gpu
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.target import Target
from llm_pipeline.model_facts.reader import stated_facts
from llm_pipeline.planning.target_plan import judge_memory

LLAMA_3_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256, "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize("accelerator", ["H100-SXM5-80GB", "H200-SXM-141GB"])
@pytest.mark.parametrize("by_cost", [False, True])
def test_bfloat16_fits_as_often_as_servers_stand_side_by_side(accelerator: str, *, by_cost: bool) -> None:
    share, sequences = release_files.memory_of(accelerator, by_cost=by_cost)
    here = Path("/nowhere")
    host = release_files.Host(accelerator, share, ("gpu",), (0,), 1, sequences, here, here, here, here)
    document = release_files._target(host, release_files.LARGE)
    target = Target.model_validate({"name": "gpu", **document})
    facts = stated_facts(LLAMA_3_8B)
    assert facts is not None
    fit, refused = judge_memory(target, QuantizationRecipe(name="none", weights="none"), facts)
    assert (fit is not None and fit.fits, refused) == (True, None)
    assert share * (2 if by_cost else 3) < find_gpu(accelerator).usable_bytes / (
        find_gpu(accelerator).memory_gib * 2**30
    )
