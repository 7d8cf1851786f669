from __future__ import annotations

import importlib.util

import pytest

from llm_pipeline.artifacts.engine_description import EngineDescription
from llm_pipeline.base.errors import IntegrityError, Unsupported
from llm_pipeline.engines.builder import engine_builder


@pytest.mark.skipif(importlib.util.find_spec("openvino") is not None, reason="this interpreter has OpenVINO")
def test_an_interpreter_without_the_library_is_told_where_to_run():
    with pytest.raises(Unsupported, match="environment that the target is for"):
        engine_builder("openvino_cpu")


def test_a_directory_without_a_description_is_not_an_engine(tmp_path):
    with pytest.raises(IntegrityError, match=r"engine\.json"):
        EngineDescription.read(tmp_path)
