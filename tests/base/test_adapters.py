"""Adapters of another package: installed by pip, found by their entry points, used without a change here."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from llm_pipeline.base import adapters
from llm_pipeline.base.errors import Unsupported
from llm_pipeline.canary.open_router import access_log_of, name_release, open_router, router_as_it_is
from llm_pipeline.canary.router import all_to
from llm_pipeline.canary.sources.open_source import open_source
from llm_pipeline.config.deployment import TargetPlace
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.planning.router_checks import problems_of

PACKAGE = Path(__file__).parents[1] / "doubles" / "acme_adapters"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory that the package was installed into; pip builds from a copy, so that nothing is left in the tree."""
    target = tmp_path_factory.mktemp("site")
    copy = tmp_path_factory.mktemp("acme")
    for name in ("pyproject.toml", "acme_adapters.py"):
        (copy / name).write_text((PACKAGE / name).read_text())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(copy)], check=True)
    yield target
    sys.modules.pop("acme_adapters", None)


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(site))
    adapters._installed.cache_clear()
    yield
    adapters._installed.cache_clear()


def ports(first: int) -> dict[str, int]:
    return {"http": first, "grpc": first + 1, "metrics": first + 2}


def place(tmp_path: Path, **changes: Any) -> TargetPlace:
    written = {
        "staging": ports(18000),
        "blue": ports(18010),
        "green": ports(18020),
        "router": {"kind": "acme", "file": str(tmp_path / "routes.json")},
        "metrics": {"kind": "acme_counts", "file": str(tmp_path / "counts.json")},
    }
    return TargetPlace.model_validate({**written, **changes})


@pytest.mark.usefixtures("installed")
def test_an_installed_router_and_source_are_used_by_their_kinds(tmp_path: Path) -> None:
    served = place(tmp_path)
    (tmp_path / "counts.json").write_text(json.dumps({"blue": {"requests": 7}, "green": {"requests": 3, "errors": 1}}))
    initial = all_to("blue", owner="test", epoch=1)

    router = open_router(served.router, {}, tmp_path, initial=initial)
    revision = router.write(initial, None)

    assert router.converged(revision)
    assert router_as_it_is(served.router, {}, tmp_path).read() == (initial, revision)
    source = open_source(served.metrics, served.router, router)
    window = source.window(source.begin())
    assert (window.arms["blue"].requests, window.arms["green"].errors) == (7, 1)
    name_release(router, "blue", "r1")  # what it cannot do is left out
    with pytest.raises(Unsupported, match="no record of single requests"):
        access_log_of(router)


@pytest.mark.usefixtures("installed")
def test_its_settings_cross_processes_as_ours_do(tmp_path: Path) -> None:
    served = place(tmp_path)
    again = TargetPlace.model_validate_json(served.model_dump_json())
    assert again == served
    assert type(again.router).__name__ == "AcmePlace"


@pytest.mark.usefixtures("installed")
def test_plan_tells_what_it_cannot_do(tmp_path: Path) -> None:
    policy = CanaryPolicy(steps_percent=(2.5, 50.0, 100.0))
    problems = list(problems_of(place(tmp_path), policy))
    assert "router acme splits by 1 %, and steps_percent has 2.5" in problems
    assert "router acme needs at least 5 % for a step" in problems


@pytest.mark.usefixtures("installed")
def test_a_wrong_setting_of_it_is_refused_as_ours_are(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        place(tmp_path, router={"kind": "acme", "file": "/routes.json", "fil": "/x"})


@pytest.mark.usefixtures("installed")
def test_its_kinds_stand_beside_ours() -> None:
    assert adapters.kinds("routers") == ("envoy", "existing_envoy", "gateway_api", "istio", "aws_alb", "acme")


def test_a_kind_that_nobody_has_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(
        ValidationError, match="no router of kind 'acme' is installed; kinds are: envoy, existing_envoy"
    ):
        place(tmp_path)


@pytest.mark.parametrize("group", ["routers", "metric_sources", "server_controls", "runners"])
def test_every_adapter_of_ours_is_where_the_table_says(group: adapters.Group) -> None:
    for kind in adapters.kinds(group):
        assert adapters.adapter(group, kind) is not None
