from __future__ import annotations

import asyncio
import json
import time

from arriving_users import ArrivingUsers


def test_later_answers_do_not_settle_a_request_that_still_waits() -> None:
    async def users_with_one_that_waits() -> list[float]:
        users = ArrivingUsers(1.0, {"slow": 0.5, "quick": 0.5}, answer_seconds=1.0, keep_alive=True)
        answered = asyncio.Event()

        async def slow() -> str:
            await answered.wait()
            return "blue"

        async def quick() -> str:
            return "blue"

        users.asks = {"slow": slow, "quick": quick}
        waiting = asyncio.create_task(users._one("slow"))
        await asyncio.sleep(0)
        asked = time.monotonic()
        for _ in range(3):
            await users._one("quick")
        before = json.loads(users.record())["settled_until"]
        answered.set()
        await waiting
        return [before, asked, json.loads(users.record())["settled_until"]]

    before, asked, after = asyncio.run(users_with_one_that_waits())
    assert before < asked < after
