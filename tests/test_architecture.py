"""What the package holds and what it leaves out; `make lint` holds the layers."""

import zipfile
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]


def test_the_wheel_has_no_demo(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = zipfile.ZipFile(wheel).namelist()
    assert "llm_pipeline/cli/__init__.py" in names
    assert "llm_pipeline_airflow/plugin.py" in names
    assert "llm_pipeline/catalog/data/gpu_catalog.json" in names
    assert [name for name in names if name.startswith("llm_pipeline/demo/")] == []
