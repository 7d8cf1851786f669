"""Sample releases in a real local store."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")
pytest.importorskip("huggingface_hub")


from llm_pipeline.reporting.collect import collect
from llm_pipeline.reporting.html import render_report

sys.path.insert(0, str(Path(__file__).parents[1]))


def _load_sample() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sample_release", Path(__file__).with_name("sample.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def sample() -> ModuleType:
    """The module that writes sample releases."""
    return _load_sample()


@pytest.fixture(scope="session")
def promoted(sample: ModuleType, tmp_path_factory: pytest.TempPathFactory):
    """A release that reached production."""
    return sample.whole_release(tmp_path_factory.mktemp("promoted"))


@pytest.fixture(scope="session")
def rolled_back(sample: ModuleType, tmp_path_factory: pytest.TempPathFactory):
    """A release that its canary took back."""
    return sample.whole_release(tmp_path_factory.mktemp("rolled-back"), good=False)


@pytest.fixture(scope="session")
def promoted_data(sample: ModuleType, promoted):
    """What its report shows."""
    return collect(promoted.store, sample.RELEASE)


@pytest.fixture(scope="session")
def promoted_page(promoted_data) -> str:
    """Its report: to draw all plots takes seconds, so tests share it."""
    return render_report(promoted_data)
