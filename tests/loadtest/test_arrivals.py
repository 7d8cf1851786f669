import hashlib
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from llm_pipeline.config.workload import ConstantArrivals, GammaArrivals, PoissonArrivals, RampArrivals
from llm_pipeline.loadtest.draws import arrival_times

ROOT = Path(__file__).parents[2]
KINDS = (PoissonArrivals(), ConstantArrivals(), GammaArrivals(), GammaArrivals(burstiness=0.5), RampArrivals())
GOLDEN = "5a270bf1afdb"

_OTHER_INTERPRETER = """
import hashlib, numpy
from llm_pipeline.config.workload import GammaArrivals
from llm_pipeline.loadtest.draws import arrival_times
print(numpy.__version__, hashlib.sha256(arrival_times(GammaArrivals(), 50.0, 100.0, 7).tobytes()).hexdigest())
"""


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_times_rise_within_the_window_and_are_those_of_the_seed(kind):
    times = arrival_times(kind, 50.0, 20.0, 1)
    assert 0.0 < times[0] <= times[-1] < 20.0
    assert np.all(np.diff(times) >= 0.0)
    np.testing.assert_array_equal(times, arrival_times(kind, 50.0, 20.0, 1))
    if not isinstance(kind, ConstantArrivals):
        assert not np.array_equal(times[:100], arrival_times(kind, 50.0, 20.0, 2)[:100])


@pytest.mark.parametrize("kind", [*KINDS, GammaArrivals(burstiness=5.0), RampArrivals(first_share=0.0)], ids=str)
def test_the_mean_rate_is_the_asked_one(kind):
    counts = [len(arrival_times(kind, 30.0, 10.0, seed)) for seed in range(200)]
    assert np.mean(counts) == pytest.approx(300, abs=4.0 * np.std(counts) / 200**0.5 + 1e-9)


@pytest.mark.parametrize(
    ("kind", "variation"),
    [
        (PoissonArrivals(), 1.0), (ConstantArrivals(), 0.0), (GammaArrivals(burstiness=2.0), 2.0),
        (GammaArrivals(burstiness=0.5), 0.5),
    ],
    ids=str,
)  # fmt: skip
def test_gaps_vary_as_the_process_says(kind, variation):
    gaps = np.diff(arrival_times(kind, 100.0, 1000.0, 3))
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(variation, rel=0.02, abs=1e-9)


def test_poisson_gaps_are_exponential():
    gaps = np.sort(np.diff(arrival_times(PoissonArrivals(), 100.0, 100.0, 4)))
    distance = np.max(np.abs(np.arange(1, len(gaps) + 1) / len(gaps) - (1.0 - np.exp(-gaps * 100.0))))
    assert distance < 1.36 / len(gaps) ** 0.5, "Kolmogorov and Smirnov, 95 %"


def test_a_ramp_begins_at_its_first_share_and_ends_as_far_above_the_mean():
    times = arrival_times(RampArrivals(first_share=0.2), 1000.0, 100.0, 5)
    by_second, _ = np.histogram(times, bins=100, range=(0.0, 100.0))
    slope, first = np.polyfit(np.arange(100) + 0.5, by_second, 1)
    assert first == pytest.approx(200.0, abs=20.0)
    assert first + 100.0 * slope == pytest.approx(1800.0, abs=20.0)


def test_a_million_arrivals_are_drawn_at_once():
    began = time.process_time()
    assert len(arrival_times(PoissonArrivals(), 1000.0, 1000.0, 6)) > 990_000
    assert time.process_time() - began < 10


def test_the_same_bytes_come_from_both_environments():
    digest = hashlib.sha256(arrival_times(GammaArrivals(), 50.0, 100.0, 7).tobytes()).hexdigest()
    assert digest.startswith(GOLDEN)
    other = ROOT / ".envs/model/bin/python"
    if not other.exists():
        pytest.skip("there is no model environment here")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    answer = subprocess.run(
        [other, "-c", _OTHER_INTERPRETER], env=environment, capture_output=True, text=True, check=True
    )
    version, theirs = answer.stdout.split()
    assert (version != np.__version__, theirs) == (True, digest)


@pytest.mark.parametrize(("rate", "seconds"), [(0, 1), (1, 0), (-1, 1)])
def test_a_rate_or_a_duration_of_nothing_is_refused(rate, seconds):
    with pytest.raises(ValueError, match="positive"):
        arrival_times(PoissonArrivals(), rate, seconds, 0)
