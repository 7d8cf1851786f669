"""Every fuzz test runs twice: with a few fixed examples in CI, and with many random ones in `make test-thorough`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("hypothesis")  # the model environment has none; these tests run in the other one
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

_QUIET = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large)

Check = Callable[[Any], None]
Fuzz = Callable[[st.SearchStrategy[Any], Check, int, int], None]


@pytest.fixture(params=["a few", pytest.param("many", marks=pytest.mark.thorough)])
def fuzz(request: pytest.FixtureRequest) -> Fuzz:
    """Runs a check on examples of a strategy: so many in CI, so many in the thorough run."""
    thorough = request.param == "many"

    def run(strategy: st.SearchStrategy[Any], check: Check, few: int, many: int) -> None:
        limits = settings(
            max_examples=many if thorough else few,
            derandomize=not thorough,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink] if thorough else [Phase.generate],
            suppress_health_check=_QUIET,
        )
        limits(given(strategy)(check))()

    return run
