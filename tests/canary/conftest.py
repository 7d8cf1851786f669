from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "doubles")]

from canary_site import CANDIDATE, Site

if TYPE_CHECKING:
    from custom_resources import CustomResources
    from live_site import LiveSite, Trial


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
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CustomResources]:
    """An empty cluster, which the Kubernetes client of this process finds."""
    from custom_resources import CustomResources

    found = CustomResources(tmp_path_factory.mktemp("cluster"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(found.kubeconfig()))
        patch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        patch.setattr("llm_pipeline.adapters.kubernetes.custom_object._WAITS_SECONDS", (0.0, 0.0))
        yield found
    found.close()


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
