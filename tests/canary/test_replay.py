"""The canary's own traffic: prompts that are sent while its block runs."""

from __future__ import annotations

import time

from openai_server import OpenAiDouble
from waiting import until

from llm_pipeline.canary.replay import Replay
from llm_pipeline.config.endpoint import Endpoint


def test_it_asks_until_its_block_ends() -> None:
    with OpenAiDouble() as router:
        endpoint = Endpoint(url=router.url, openai_model="llm")
        replay = Replay(endpoint, ["a", "b"], maximum_tokens=4, rate_per_second=50)
        with replay.sending():
            until(lambda: replay.sent_since(0.0) >= 20)
            assert replay.sent_since(time.time() + 60) == 0
        sent = replay.sent_since(0.0)
        time.sleep(0.2)
        assert replay.sent_since(0.0) == sent
        assert len(router.seen) > 0
