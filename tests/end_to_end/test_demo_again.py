"""The demo as it is committed, and a second time: what the other end-to-end tests shorten. About ten minutes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_pipeline.base.errors import ExitCode
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.demo.services import MODEL_ID, TARGET, generate, read_traffic
from llm_pipeline.store.pointers import Pointers, read_pointers

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow, pytest.mark.thorough]

_COMMITTED = Path(__file__).parents[2] / "configs" / "releases" / "demo-rollback.yaml"
_RECIPE = "int8_smoothquant"


def pointers(site) -> Pointers:
    return read_pointers(site.store, MODEL_ID, TARGET)[0]


@pytest.fixture(scope="module", autouse=True)
def committed_drill(site) -> Iterator[None]:
    """The drill with its own recipe; other tests let it take one that was made before."""
    path = site.layout.release("demo-rollback")
    shortened = path.read_text()
    path.write_text(_COMMITTED.read_text())
    yield
    path.write_text(shortened)


def test_the_drill_makes_its_own_recipe_and_is_rolled_back_by_the_canary(site) -> None:
    assert site.run("up") == ExitCode.GO, site.output
    before = pointers(site)
    assert site.run("rollback") == ExitCode.GO, site.output
    assert pointers(site) == before
    drill = site.flow("demo-rollback")
    assert drill.chosen_recipe(TARGET) == _RECIPE
    assert not drill.result("quantize", _RECIPE).reused
    canary = [result.judgement for (stage, _), result in drill.results().items() if stage == "canary"]
    assert Verdict.NO_GO in [judgement.verdict for judgement in canary if judgement is not None], site.output
    assert generate(site.deployment, "7 + 5 =") == "12"


def test_a_second_demo_trains_and_computes_nothing_again(site) -> None:
    production = pointers(site).production
    assert site.run("up") == ExitCode.GO, site.output
    assert "reused, trained before" in site.output
    assert pointers(site).production == production
    flow = site.flow("demo")
    chosen = flow.chosen_recipe(TARGET)
    assert flow.result("quantize", chosen).reused
    assert flow.result("accuracy", chosen).reused
    assert flow.result("canary", f"{TARGET}:100").judgement.summary == "already in production"
    assert read_traffic(site.layout)["failed"] == 0
