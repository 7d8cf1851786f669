from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from canary_site import CANDIDATE, Site

if TYPE_CHECKING:
    from custom_resources import CustomResources
    from live_site import LiveSite, Trial


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for nothing but the disk's answers: a process that is killed loses no page cache."""
    monkeypatch.setattr("llm_pipeline.canary.moving._STEADY_SECONDS", 0.0)
    monkeypatch.setattr("llm_pipeline.operations.served_place._LONGEST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    place = Site(tmp_path)
    try:
        place.up()
        yield place
    finally:
        place.down()


@pytest.fixture(scope="module")
def quiet_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A router and both slots for all tests of a file, without users."""
    place = Site(tmp_path_factory.mktemp("site"))
    try:
        place.up()
        place.control.ensure("green", CANDIDATE)
        yield place
    finally:
        place.down()


@pytest.fixture(scope="module")
def double_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CustomResources]:
    """An empty double of a cluster, which the Kubernetes client of this process finds."""
    from custom_resources import CustomResources

    yield from _found(CustomResources(tmp_path_factory.mktemp("cluster")))


@pytest.fixture(scope="module")
def real_cluster(tmp_path_factory: pytest.TempPathFactory, kubernetes_routes: Any) -> Iterator[Any]:
    """A real API server in its place, asked with the permissions that the documentation names."""
    from real_resources import RealResources
    from router_contract import NAMESPACE

    yield from _found(RealResources(kubernetes_routes, tmp_path_factory.mktemp("cluster"), NAMESPACE))


@pytest.fixture(scope="module", params=["double", pytest.param("real", marks=pytest.mark.thorough)])
def cluster(request: pytest.FixtureRequest) -> CustomResources:
    """Both, one after the other."""
    found: CustomResources = request.getfixturevalue(f"{request.param}_cluster")
    return found


@pytest.fixture(scope="session")
def kubernetes_routes(kubernetes_server: Any) -> Any:
    """A real API server that knows routes, with the namespace of the tests' ones."""
    from real_resources import define_routes
    from router_contract import NAMESPACE

    define_routes(kubernetes_server)
    kubernetes_server.namespace(NAMESPACE)
    return kubernetes_server


def _found(api: Any) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(api.kubeconfig()))
        patch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        patch.setattr("llm_pipeline.adapters.kubernetes.api._WAITS_SECONDS", (0.0, 0.0))
        yield api
    api.close()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSite]:
    """One Envoy with users of all kinds for all scenarios of a file."""
    from live_site import LiveSite

    place = LiveSite(tmp_path_factory.mktemp("live"))
    try:
        place.up()
        place.mixed_users()
        yield place
    finally:
        place.down()


@pytest.fixture
def trial(live: LiveSite) -> Iterator[Trial]:
    """A release on trial there."""
    one = live.begin_trial()
    try:
        yield one
    finally:
        one.end()
