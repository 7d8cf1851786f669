"""Production's version beside staging, for a comparison: a real server that is gone afterwards, whatever happens."""

import http.client
import json
from pathlib import Path

import pytest

from llm_pipeline.serving.comparison_server import comparison_server
from llm_pipeline.serving.triton_server import find_server
from llm_pipeline.store import open_store

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TRITON_HOME, MODEL_PYTHON = ROOT / ".envs" / "triton", ROOT / ".envs" / "model" / "bin" / "python"


def test_productions_version_answers_inside_the_block_and_is_gone_after_it_even_after_a_failure(slot, tmp_path):
    store = open_store(f"file://{tmp_path}/store")
    production = store.publish("model_repository", slot.repository)
    left_by_a_killed_run = slot.start()

    def compare_and_fail():
        places = {"triton_home": TRITON_HOME, "python": MODEL_PYTHON, "state": slot.state}
        with comparison_server(store, production, slot.ports, **places) as endpoint:
            connection = http.client.HTTPConnection(endpoint.url.removeprefix("http://"), timeout=5)
            connection.request("GET", "/v1/models")
            (model,) = json.loads(connection.getresponse().read())["data"]
            assert model["root"] == f"llm_pipeline:{production.digest}"
            assert find_server(slot.state).pid != left_by_a_killed_run.pid
            raise KeyError("the comparison failed")

    with pytest.raises(KeyError, match="the comparison failed"):
        compare_and_fail()
    assert find_server(slot.state) is None
    assert not left_by_a_killed_run.alive
