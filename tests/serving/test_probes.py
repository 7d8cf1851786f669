import asyncio
import sys
from pathlib import Path

import pytest

from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.policy import StagingPolicy
from llm_pipeline.serving.client import GenerationClient, GenerationRequest
from llm_pipeline.serving.probes import probe

sys.path.insert(0, str(Path(__file__).parent / "faulty_model"))

from faulty_server import MODEL_PYTHON, TRITON_HOME, FaultyServer, faulty_server

pytestmark = pytest.mark.slow

POLICY = StagingPolicy(ready_timeout_seconds=2, minimum_golden_prompts=20)
GOLDEN = [
    GoldenPrompt(prompt=f"a{number} b{number}", completion=f"a{number} b{number} a{number}", maximum_tokens=3)
    for number in range(24)
]


def probed(server, golden=GOLDEN, policy=POLICY, **options) -> Judgement:
    endpoint = server.endpoint
    return asyncio.run(probe(endpoint, golden, policy, **options))


def failed(judgement: Judgement) -> set[str]:
    return {fact.name for fact in judgement.evidence if fact.verdict is not Verdict.GO}


def test_a_sound_server_passes_every_probe(slot):
    judgement = probed(slot.start())
    assert judgement.verdict is Verdict.GO, judgement.summary
    assert len(judgement.evidence) == 9


def test_other_words_than_the_golden_ones_fail_and_are_shown(slot):
    judgement = probed(slot.start("drift"))
    assert judgement.verdict is Verdict.NO_GO
    assert failed(judgement) == {"golden outputs reproduced"}
    assert "0.0 % of all text equal" in judgement.summary
    assert "'a0 b0' gave 'drift drift drift' instead of 'a0 b0 a0'" in judgement.summary


def test_a_few_different_outputs_are_within_the_policy(slot):
    server = slot.start()
    wrong = GOLDEN[0].model_copy(update={"completion": "a0 something else"})
    judgement = probed(server, [wrong, *GOLDEN[1:]])
    assert judgement.verdict is Verdict.GO  # 23 of 24
    parity = next(fact for fact in judgement.evidence if fact.name == "golden outputs reproduced")
    assert "'b0 a0' instead of 'something else' from character 3 on" in parity.detail
    assert probed(server, [wrong] * 2 + GOLDEN[2:]).verdict is Verdict.NO_GO  # 22 of 24


def test_too_few_golden_prompts_are_inconclusive(slot):
    server = slot.start()
    assert probed(server, GOLDEN[:5]).verdict is Verdict.INCONCLUSIVE
    assert probed(server, []).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("fault", ["truncate", "keep_going"])
def test_a_server_that_does_not_keep_the_length_fails(slot, fault):
    assert probed(slot.start(fault)).verdict is Verdict.NO_GO


def test_a_server_that_reads_over_stop_words_fails_and_shows_it(slot):
    judgement = probed(slot.start("no_stops"))
    assert failed(judgement) == {"generation stops at stop words"}
    assert "16 of 16 failed, the first: stop word 'b0' gave ' a0 b0 a0' (length) instead of 'a0'" in judgement.summary


def test_a_server_that_goes_on_after_its_client_left_fails(slot):
    judgement = probed(slot.start("deaf"))
    assert failed(judgement) == {"a client that goes away frees its place"}


def test_a_server_that_takes_every_request_fails(slot):
    assert "bad requests are refused with a reason" in failed(probed(slot.start("gullible")))


def test_a_server_that_is_not_there_fails_within_the_time_of_the_policy():
    policy = POLICY.model_copy(update={"ready_timeout_seconds": 0.5})
    judgement = asyncio.run(probe(Endpoint(url="http://127.0.0.1:9"), GOLDEN, policy))
    assert judgement.verdict is Verdict.NO_GO
    assert "Connect" in judgement.summary


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    if not TRITON_HOME.exists() or not MODEL_PYTHON.exists():
        pytest.skip("no tritonserver or no model interpreter here")
    with faulty_server(tmp_path_factory.mktemp("faulty")) as server:
        yield server


@pytest.fixture(scope="module")
def golden(faulty) -> list[GoldenPrompt]:
    """What the server answers while it is sound."""

    async def ask() -> list[GoldenPrompt]:
        async with GenerationClient.of(faulty.endpoint) as client:
            prompts = [f"golden prompt {number}" for number in range(20)]
            answers = await asyncio.gather(*(client.generate(GenerationRequest(prompt, 12)) for prompt in prompts))
            pairs = zip(prompts, answers, strict=True)
            return [GoldenPrompt(prompt=one, completion=other.text, maximum_tokens=12) for one, other in pairs]

    faulty.order()
    return asyncio.run(ask())


def judged(server: FaultyServer, golden: list[GoldenPrompt], kind: str, **how: float) -> Judgement:
    server.order(kind, **how)
    return asyncio.run(probe(server.endpoint, golden, POLICY))


def test_a_server_that_caches_answers_is_anomalous(faulty, golden):
    judgement = judged(faulty, golden, "cache")
    assert judgement.verdict is Verdict.ANOMALOUS
    assert "repeated prompts are generated again" in failed(judgement)
    assert "were answered in one piece: the server replays answers" in judgement.summary


@pytest.mark.parametrize(("kind", "how"), [("prefix_cache", {"seconds": 0.1}), ("speculate", {"factor": 16})])
def test_what_makes_repeated_prompts_faster_without_replaying_answers_is_sound(faulty, golden, kind, how):
    judgement = judged(faulty, golden, kind, **how)
    assert judgement.verdict is Verdict.GO, judgement.summary


@pytest.mark.parametrize(
    ("kind", "reason"), [("error", "illegal memory access"), ("truncate", "tokens came"), ("drop", "has no end")]
)
def test_an_answer_that_breaks_off_fails_whatever_its_status_is(faulty, golden, kind, reason):
    judgement = judged(faulty, golden, kind, every=7)
    assert judgement.verdict is Verdict.NO_GO
    assert reason in judgement.summary
