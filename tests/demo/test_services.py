from __future__ import annotations

import sys
import time

import pytest
from deployment_here import write_deployment

from llm_pipeline.base.errors import StageCrashed
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.demo import services
from llm_pipeline.demo.services import DemoLayout


@pytest.fixture
def layout(tmp_path):
    return DemoLayout(root=tmp_path, configs=tmp_path / "configs")  # never the repository's, whose demo may run


@pytest.fixture
def deployment(tmp_path):
    """One whose model environment runs `trainer`, given the directory to make."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/trainer "$4"\n')
    python.chmod(0o755)
    here = load_yaml(write_deployment(tmp_path, 18000), Deployment).model_dump()
    return Deployment.model_validate(here | {"environments": {"model": str(python)}})


def test_the_model_is_made_while_something_else_starts_and_only_once(layout, deployment, tmp_path):
    (tmp_path / "trainer").write_text("import pathlib, sys; pathlib.Path(sys.argv[1]).mkdir(parents=True)")
    with services.making(layout, deployment) as finished:
        deadline = time.monotonic() + 60
        while not layout.checkpoint.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert finished() is True
    with services.making(layout, deployment) as finished:
        assert finished() is False


def test_a_failed_training_says_what_it_said(layout, deployment, tmp_path):
    (tmp_path / "trainer").write_text("print('no space'); raise SystemExit(3)")
    with services.making(layout, deployment) as finished, pytest.raises(StageCrashed, match=r"(?s)code 3.*no space"):
        finished()


def test_a_training_that_nobody_waits_for_is_stopped(layout, deployment, tmp_path):
    (tmp_path / "trainer").write_text("import time; time.sleep(600)")
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), services.making(layout, deployment):
        raise KeyboardInterrupt
    assert time.monotonic() - started < 300
