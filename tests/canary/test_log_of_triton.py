"""What the router's log says of a real Triton's answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as asynchronous
from canary_site import Site
from hostile_client import HOST, ask, generation
from production_site import MODEL_PYTHON, TRITON_HOME
from test_users_port_of_triton import JSON, TritonSite

from llm_pipeline.canary.access_log import AccessLog
from llm_pipeline.canary.observations import ObservedRequest

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if not TRITON_HOME.exists() or not MODEL_PYTHON.exists():
        pytest.skip("no tritonserver or no model interpreter here")
    place = TritonSite(tmp_path_factory.mktemp("triton"))
    try:
        place.up()
        yield place
    finally:
        place.down()


def logged(site: Site, act: Callable[[], object]) -> ObservedRequest:
    """The one request of the act, as the log has it."""
    log = AccessLog(site.router.files.access_log, site.router.slot_of_address)
    before, deadline = log.end(), time.monotonic() + 60
    act()
    while not (found := [one for one in log.read(before)[0] if not one.in_flight]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (request,) = found
    return request


async def stream(port: int, prompt: bytes) -> list[str]:
    """What a stream's messages say is wrong, each; its own status is 0."""
    text, tokens = triton.InferInput("text_input", [1], "BYTES"), triton.InferInput("max_tokens", [1], "INT64")
    text.set_data_from_numpy(np.array([prompt], dtype=object))
    tokens.set_data_from_numpy(np.array([4], dtype=np.int64))
    found = []

    async def requests():
        yield {"model_name": "llm", "inputs": [text, tokens]}

    async with asynchronous.InferenceServerClient(f"{HOST}:{port}") as client:
        async for _, error in client.stream_infer(requests()):
            found.append(str(error or ""))
    return found


def test_an_error_inside_a_stream_is_told_from_an_answer(site) -> None:
    errors: list[str] = []
    request = logged(site, lambda: errors.extend(asyncio.run(stream(site.place.port, b""))))
    assert "text_input is empty" in errors[0]
    assert (request.error, request.lost, request.streaming) == (True, True, True)
    request = logged(site, lambda: errors.extend(asyncio.run(stream(site.place.port, b"a b c"))))
    assert errors[-1] == ""
    assert (request.error, request.lost, request.streaming) == (False, False, True)


def test_a_text_that_goes_round_is_told_from_one_that_does_not(site) -> None:
    def repetition(prompt: str, tokens: int) -> float:
        body = generation(prompt, tokens)
        request = logged(site, lambda: ask(site.place.port, "POST", "/v2/models/llm/generate", body, JSON))
        assert request.repetition is not None
        return request.repetition

    assert repetition("a b c", 200) > 0.9
    assert repetition(" ".join(f"word{number}" for number in range(60)), 60) < 0.3


def test_a_user_who_leaves_a_stream_is_seen_to_have_left(site) -> None:
    async def leave() -> None:
        await asyncio.wait_for(stream_for_ever(), 0.5)

    async def stream_for_ever() -> None:
        reader, writer = await asyncio.open_connection(HOST, site.place.port)
        body = generation("a b c", 4000)
        head = f"POST /v2/models/llm/generate HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        try:
            await reader.read()
        finally:
            writer.close()

    def act() -> None:
        with pytest.raises(TimeoutError):
            asyncio.run(leave())

    request = logged(site, act)
    assert (request.cancelled, request.error) == (True, False)
    assert 300 < request.total_milliseconds < 5000
