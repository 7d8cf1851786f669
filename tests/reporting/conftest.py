"""Sample releases in a real local store."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")
pytest.importorskip("huggingface_hub")

from sample_release import SampleRelease, whole_release

from llm_pipeline.reporting.html import render_report
from llm_pipeline.reporting.model import ReportData


@pytest.fixture(scope="session")
def promoted(tmp_path_factory: pytest.TempPathFactory) -> SampleRelease:
    """A release that reached production."""
    return whole_release(tmp_path_factory.mktemp("promoted"))


@pytest.fixture(scope="session")
def rolled_back(tmp_path_factory: pytest.TempPathFactory) -> SampleRelease:
    """A release that its canary took back."""
    return whole_release(tmp_path_factory.mktemp("rolled-back"), good=False)


@pytest.fixture(scope="session")
def promoted_data(promoted: SampleRelease) -> ReportData:
    """What its report shows."""
    return promoted.report()


@pytest.fixture(scope="session")
def promoted_page(promoted_data: ReportData) -> str:
    """Its report: to draw all plots takes seconds, so tests share it."""
    return render_report(promoted_data)


@pytest.fixture
def begun(tmp_path: Path) -> SampleRelease:
    """A release of which nothing was done yet."""
    return SampleRelease(tmp_path)


@pytest.fixture
def chosen(begun: SampleRelease) -> SampleRelease:
    """A release that has chosen its recipe."""
    begun.measure_baseline()
    begun.try_recipes(["fp8", "int4_naive"])
    return begun
