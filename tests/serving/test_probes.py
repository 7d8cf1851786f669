"""Each way in which a server can be wrong is found by the probe that looks for it; a sound one passes all."""

from __future__ import annotations

import asyncio

import pytest
from openai_endpoint import at, golden_of
from openai_server import OpenAiDouble

from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.policy import StagingPolicy
from llm_pipeline.serving import probes
from llm_pipeline.serving.probes import probe

POLICY = StagingPolicy(ready_timeout_seconds=0.1, minimum_golden_prompts=20)


@pytest.fixture(scope="module")
def golden() -> list[GoldenPrompt]:
    with OpenAiDouble() as server:
        return golden_of(server, 24, 12)


def probed(server: OpenAiDouble, golden: list[GoldenPrompt], **changes: object) -> Judgement:
    return asyncio.run(probe(at(server, **changes), golden, POLICY, timeout_seconds=10))


def failed(judgement: Judgement) -> dict[str, Verdict]:
    return {fact.name: fact.verdict for fact in judgement.evidence if fact.verdict is not Verdict.GO}


def found(judgement: Judgement, name: str) -> Evidence:
    return next(fact for fact in judgement.evidence if fact.name == name)


GOLDEN, LEFT = "golden outputs reproduced", "a client that goes away frees its place"
FAULTS = {
    "drift": (GOLDEN, Verdict.NO_GO, "24 differ, with "),
    "other_model": ("first real generation", Verdict.NO_GO, "the model 'gpt-oss' answered"),
    "error": ("first real generation", Verdict.NO_GO, "EngineCore died"),
    "no_end": ("streams equal whole answers", Verdict.NO_GO, "end mark"),
    "keeps_no_length": ("generation stops at max_tokens", Verdict.NO_GO, "6 tokens came, 5 were asked for"),
    "reads_over_stops": ("generation stops at stop words", Verdict.NO_GO, "16 of 16 failed"),
    "gullible": ("bad requests are refused with a reason", Verdict.NO_GO, "HTTP 200"),
    "replay": ("repeated prompts are generated again", Verdict.ANOMALOUS, "replay"),
    "deaf": (LEFT, Verdict.NO_GO, "still count 8 requests"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_is_wrong_fails_the_probe_of_its_fault_which_says_why(golden, fault, monkeypatch):
    for longest in ("_RELEASE_SECONDS", "_COUNTED_WITHIN_SECONDS"):
        monkeypatch.setattr(probes, longest, 0.5)
    name, verdict, why = FAULTS[fault]
    with OpenAiDouble(fault=fault) as wrong:
        judgement = probed(wrong, golden)
    assert failed(judgement).get(name) is verdict, judgement.summary
    assert why in found(judgement, name).detail


def test_a_sound_server_passes_and_a_few_other_words_are_within_the_policy(golden):
    wrong = golden[0].model_copy(update={"completion": golden[0].completion.rpartition(" ")[0] + " something"})
    with OpenAiDouble() as server:
        judgement = probed(server, golden)
        assert (judgement.verdict, len(judgement.evidence)) == (Verdict.GO, 9), judgement.summary
        judgement = probed(server, [wrong, *golden[1:]])
        assert judgement.verdict is Verdict.GO  # 23 of 24
        assert "instead of 'something' from character" in found(judgement, GOLDEN).detail
        assert probed(server, [wrong] * 2 + golden[2:]).verdict is Verdict.NO_GO  # 22 of 24
        for too_few in (golden[:5], []):
            assert probed(server, too_few).verdict is Verdict.INCONCLUSIVE


def test_a_server_that_is_not_there_fails_within_the_time_of_the_policy(golden):
    judgement = asyncio.run(probe(Endpoint(url="http://127.0.0.1:9"), golden, POLICY))
    assert judgement.verdict is Verdict.NO_GO
    assert "Connect" in judgement.summary


def test_without_metrics_nothing_is_known_of_clients_that_go_away(golden):
    with OpenAiDouble(counts=False) as silent:
        assert failed(probed(silent, golden, metrics_url=None)) == {LEFT: Verdict.INCONCLUSIVE}


def test_characters_that_max_tokens_cuts_are_no_fault():
    with OpenAiDouble(fault="half_characters") as server:
        golden = golden_of(server, 24, 12)
        assert {one.completion[-1] for one in golden} == {"\ufffd"}
        judgement = probed(server, golden)
    assert judgement.verdict is Verdict.GO, judgement.summary


def test_a_gateway_that_states_no_context_is_judged_by_what_fits_and_says_what_was_not_tried(golden):
    with OpenAiDouble(states_context=False) as server:
        judgement = probed(server, golden)
    assert judgement.verdict is Verdict.GO, judgement.summary
    assert "No over-long request was sent" in found(judgement, "bad requests are refused with a reason").detail
    longest = [one["max_tokens"] for one in server.seen if one.get("stream")]
    assert longest.count(384) == 8, "1,536 and 768 tokens are refused, and nobody can go away from a refusal"


def test_refused_streams_are_none_that_a_client_goes_away_from(golden):
    with OpenAiDouble() as server:
        server.longest = 300  # far less than the context that it states
        fact = found(probed(server, golden), LEFT)
    assert (fact.verdict, fact.detail) == (Verdict.NO_GO, "No stream began (HTTP 400).")
