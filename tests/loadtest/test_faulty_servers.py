"""Each way in which a server can be bad, through the real tritonserver and a whole load test."""

import json
import threading
import time
from collections.abc import Callable

import pytest
from faulty_server import MODEL_PYTHON, TRITON_HOME, FaultyServer, faulty_server

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.policy import LoadTestPolicy, ServiceLevel
from llm_pipeline.config.workload import Workload
from llm_pipeline.loadtest.measure import LoadClient
from llm_pipeline.loadtest.outcome import LoadTestOutcome
from llm_pipeline.loadtest.records import Fault
from llm_pipeline.loadtest.session import Windows, run_session
from llm_pipeline.loadtest.workload import TrafficSource

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not TRITON_HOME.exists() or not MODEL_PYTHON.exists(), reason="no tritonserver here"),
]

WORKLOAD = Workload(
    prompts="prompts.jsonl",
    rate_per_second=52.0,
    duration_seconds=5.0,
    prompt_tokens=(6, 12),
    output_tokens=(4, 6),
    seed=5,
)
POLICY = LoadTestPolicy(
    service_level=ServiceLevel(
        first_token_milliseconds=400, end_to_end_milliseconds=500, longest_stall_milliseconds=300
    ),
    attainment=0.7,
    confidence=0.9,
    maximum_client_lag_milliseconds=400,  # the hosts of tests are busy
    windows=6,
    window_growth=1,
    search=None,
)
USERS, TIMEOUT_SECONDS = 16, 3.0


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> TrafficSource:
    directory = tmp_path_factory.mktemp("workload")
    words = [f"word{number}" for number in range(400)]
    lines = [json.dumps({"prompt": " ".join(words[start : start + 20])}) for start in range(0, 400, 20)]
    (directory / WORKLOAD.prompts).write_text("\n".join(lines) + "\n")
    return TrafficSource(WORKLOAD, directory, count_tokens=lambda text: len(text.split()))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with faulty_server(tmp_path_factory.mktemp("server")) as server:
        yield server


def load_tested(
    server: FaultyServer,
    source: TrafficSource,
    beside: Callable[[Windows], None] = lambda _: None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> LoadTestOutcome:
    """A whole load test; `beside` runs in a thread at the same time."""
    with LoadClient(server.endpoint, processes=1, timeout_seconds=timeout_seconds) as client:
        windows = Windows(client, source, WORKLOAD, POLICY)
        thread = threading.Thread(target=beside, args=(windows,), daemon=True)
        thread.start()
        outcome = run_session(windows, users=USERS)
        thread.join()
    return outcome


def await_target(windows: Windows) -> None:
    """Return when the target's window begins, which follows the ceiling's."""
    while not windows.summaries or windows.summaries[-1].phase != "ceiling":
        time.sleep(0.01)


def faults(outcome: LoadTestOutcome) -> dict[str, int]:
    """What went wrong in the target's window."""
    return next(window for window in reversed(outcome.windows) if window.phase == "target").faults


def assert_too_often_missed(outcome: LoadTestOutcome, *limits: str) -> None:
    """Nothing failed, and these limits were missed too often.

    Requests of an overloaded server wait for one another: they count as few, and often as too few to decide.
    """
    assert outcome.judgement.verdict in (Verdict.NO_GO, Verdict.INCONCLUSIVE)
    measured = {fact.name: fact.measured for fact in outcome.judgement.evidence}
    assert all(measured[limit] < POLICY.attainment for limit in limits), measured
    assert faults(outcome) == {}


def test_a_server_that_becomes_slow_misses_its_service_level_and_nothing_else(server, source):
    def slow(windows: Windows) -> None:
        await_target(windows)
        server.order("slow", factor=35)

    server.order()
    outcome = load_tested(server, source, slow, timeout_seconds=60.0)  # what waits in its queue is late, not lost
    assert_too_often_missed(outcome, "service level met", "whole answer in time")


@pytest.mark.parametrize(
    ("kind", "every", "verdict", "possible"),
    [
        ("drop", 200, Verdict.NO_GO, {Fault.CUT, Fault.ERROR_IN_ANSWER}),  # the endpoint may still tell it
        ("error", 50, Verdict.NO_GO, {Fault.ERROR_IN_ANSWER}),
        ("truncate", 50, Verdict.ANOMALOUS, {Fault.SHORT}),  # answers that claim a length they do not have
    ],
)
def test_a_few_answers_that_are_wrong_fail_a_release(server, source, kind, every, verdict, possible):  # noqa: PLR0917
    server.order(kind, every=every)
    outcome = load_tested(server, source, timeout_seconds=60.0)
    assert outcome.judgement.verdict is verdict
    assert faults(outcome).keys() <= {fault.words for fault in possible}


def test_answers_that_stall_half_way_miss_the_limit_of_a_stall(server, source):
    server.order("stall", every=1, seconds=0.6)
    outcome = load_tested(server, source, timeout_seconds=60.0)
    assert_too_often_missed(outcome, "service level met", "no long stall")


def test_a_server_whose_model_dies_under_load_fails(source, tmp_path):
    """Triton may die with its stub; the endpoint stays, and answers 503."""

    def die(windows: Windows) -> None:
        await_target(windows)
        time.sleep(0.6 * WORKLOAD.duration_seconds)
        server.kill_model()

    with faulty_server(tmp_path) as server:
        outcome = load_tested(server, source, die)
    assert outcome.judgement.verdict is Verdict.NO_GO
    assert {fault.words for fault in (Fault.TIMEOUT, Fault.CONNECTION, Fault.SHED)} & faults(outcome).keys()
