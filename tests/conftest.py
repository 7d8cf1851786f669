"""Which interpreter runs which test, so that every test runs exactly once.

A test file that needs a package of the model environment says so with `pytest.importorskip("torch")` (or another of
`MODEL_PACKAGES`) at its top level; it runs under `.envs/model`. Every other file runs under `.envs/control`. An
interpreter that has both Airflow and torch runs everything.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

MODEL_PACKAGES = (
    "accelerate", "datasets", "lm_eval", "modelopt", "nncf", "openvino", "openvino_genai", "optimum", "safetensors",
    "tokenizers", "torch", "transformers",
)  # fmt: skip
_NEEDS_MODEL_PACKAGE = re.compile(
    rf"""^(?:\w+ = )?pytest\.importorskip\(\s*["'](?:{"|".join(MODEL_PACKAGES)})[."']""", re.MULTILINE
)
_HAS_MODEL_PACKAGES = importlib.util.find_spec("torch") is not None
_HAS_CONTROL_PACKAGES = importlib.util.find_spec("airflow") is not None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out a test file that the other interpreter runs."""
    if collection_path.is_dir() or not collection_path.match("test_*.py"):
        return None
    needs_model_packages = _NEEDS_MODEL_PACKAGE.search(collection_path.read_text()) is not None
    runs_here = _HAS_MODEL_PACKAGES if needs_model_packages else _HAS_CONTROL_PACKAGES
    return None if runs_here else True
