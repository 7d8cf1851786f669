import asyncio

import pytest

from llm_pipeline.config.policy import StagingPolicy
from llm_pipeline.serving.golden import GoldenPrompt
from llm_pipeline.serving.probes import probe
from llm_pipeline.verdict import Judgement, Verdict

pytestmark = pytest.mark.slow

POLICY = StagingPolicy(ready_timeout_seconds=2, minimum_golden_prompts=20)
GOLDEN = [
    GoldenPrompt(prompt=f"a{number} b{number}", completion=f"a{number} b{number} a{number}", maximum_tokens=3)
    for number in range(24)
]


def probed(server, golden=GOLDEN, policy=POLICY) -> Judgement:
    return asyncio.run(probe(server.http_url, golden, policy, metrics_url=server.metrics_url))


def failed(judgement: Judgement) -> set[str]:
    return {fact.name for fact in judgement.evidence if fact.verdict is not Verdict.GO}


def test_a_sound_server_passes_every_probe(slot):
    judgement = probed(slot.start())
    assert judgement.verdict is Verdict.GO, judgement.summary
    assert len(judgement.evidence) == 7


def test_other_words_than_the_golden_ones_fail_and_are_shown(slot):
    judgement = probed(slot.start("drift"))
    assert judgement.verdict is Verdict.NO_GO
    assert failed(judgement) == {"golden outputs reproduced"}
    assert "'a0 b0' gave ' drift drift drift' instead of 'a0 b0 a0'" in judgement.summary


def test_a_few_different_outputs_are_within_the_policy(slot):
    server = slot.start()
    wrong = GOLDEN[0].model_copy(update={"completion": "something else"})
    assert probed(server, [wrong, *GOLDEN[1:]]).verdict is Verdict.GO  # 23 of 24
    assert probed(server, [wrong] * 2 + GOLDEN[2:]).verdict is Verdict.NO_GO  # 22 of 24


def test_too_few_golden_prompts_are_inconclusive(slot):
    server = slot.start()
    assert probed(server, GOLDEN[:5]).verdict is Verdict.INCONCLUSIVE
    assert probed(server, []).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("fault", ["truncate", "keep_going"])
def test_a_server_that_does_not_keep_the_length_fails(slot, fault):
    assert probed(slot.start(fault)).verdict is Verdict.NO_GO


def test_a_server_that_goes_on_after_its_client_left_fails(slot):
    judgement = probed(slot.start("deaf"))
    assert failed(judgement) == {"a client that goes away frees its place"}


def test_a_server_that_takes_every_request_fails(slot):
    assert "bad requests are refused with a reason" in failed(probed(slot.start("gullible")))


def test_a_server_that_is_not_there_fails_within_the_time_of_the_policy():
    policy = POLICY.model_copy(update={"ready_timeout_seconds": 0.5})
    judgement = asyncio.run(probe("http://127.0.0.1:9", GOLDEN, policy))
    assert judgement.verdict is Verdict.NO_GO
    assert "Connect" in judgement.summary
