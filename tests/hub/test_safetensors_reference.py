"""The header check against files that the reference library writes."""

from __future__ import annotations

from pathlib import Path

import pytest

numpy_files = pytest.importorskip("safetensors.numpy")

import numpy as np

from llm_pipeline.artifacts.safetensors_header import read_header


def test_what_the_reference_library_writes_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    numpy_files.save_file({"w": np.ones((3, 5), np.float16), "s": np.ones((), np.float32)}, path)
    assert {tensor.name: tensor.shape for tensor in read_header(path)} == {"w": (3, 5), "s": ()}
