"""The Envoy adapter against the real proxy."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import Counter

import aiohttp
import pytest

from llm_pipeline.adapters.envoy.router import stop_router
from llm_pipeline.adapters.envoy.xds import replace_json
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.canary.router import RouterRejected, RouteState, all_to

pytestmark = pytest.mark.slow


def split(percent: float, epoch: int = 1, **changes) -> RouteState:
    green = round(percent * 100)
    values = {"weights": {"blue": 10_000 - green, "green": green}, "candidate": "green", "owner": "t", "epoch": epoch}
    return RouteState(**{**values, **changes})


def shift(site, want: RouteState) -> str:
    revision = site.router.write(want, None)
    await_converged(site, revision)
    return revision


def await_converged(site, revision: str) -> None:
    deadline = time.monotonic() + 60
    while not site.router.converged(revision):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def ask(site, count: int, *, stream=False, prompt="one", headers=None) -> list[tuple[int, str, str]]:
    """Status, server and attempts of `count` requests, eight at a time."""

    async def all_of_them() -> list[tuple[int, str, str]]:
        limit = asyncio.Semaphore(8)
        async with aiohttp.ClientSession() as session:

            async def one(number: int) -> tuple[int, str, str]:
                body = {"prompt": prompt, "max_tokens": 4, "stream": stream}
                extra = headers(number) if headers else {}
                async with limit, session.post(f"{site.url}/v1/completions", json=body, headers=extra) as answer:
                    await answer.read()
                    seen = answer.headers
                    return answer.status, seen.get("x-served-by", ""), seen.get("x-envoy-attempt-count", "")

            return await asyncio.gather(*(one(number) for number in range(count)))

    return asyncio.run(all_of_them())


def both_up(site, drill=None) -> None:
    site.control.drill = drill
    site.control.replace("green", None)
    deadline = time.monotonic() + 60
    while not site.router.usable("green"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def releases_of(site, count: int) -> set[tuple[str, str | None]]:
    """Which server gave an answer, and which release the answer says gave it."""

    async def all_of_them() -> set[tuple[str, str | None]]:
        async with aiohttp.ClientSession() as session:

            async def one() -> tuple[str, str | None]:
                body = {"prompt": "one", "max_tokens": 4}
                async with session.post(f"{site.url}/v1/completions", json=body) as answer:
                    return answer.headers.get("x-served-by", ""), answer.headers.get("x-llm-release")

            return {await one() for _ in range(count)}

    return asyncio.run(all_of_them())


def test_an_answer_says_which_release_gave_it_also_where_the_other_one_had_failed(site) -> None:
    both_up(site)
    assert releases_of(site, 3) == {("blue", None)}
    site.router.name_release("blue", "r1")
    site.router.name_release("green", 'r2-"quoted"')
    assert site.router.read()[0].same_traffic(all_to("blue", owner="test", epoch=0))
    shift(site, split(50))
    assert releases_of(site, 60) == {("blue", "r1"), ("green", 'r2-"quoted"')}
    site.control.stop("green")
    assert releases_of(site, 40) == {("blue", "r1")}
    site.router.name_release("blue", "r3")  # at once, without another write of the routes
    deadline = time.monotonic() + 60
    while releases_of(site, 1) != {("blue", "r3")}:
        assert time.monotonic() < deadline
    with socket.create_connection(("127.0.0.1", site.place.port)) as user:
        user.sendall(b"GET /v2/repository/index HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"x-llm-release" not in user.recv(4096), "Envoy's own answer"


def test_routes_to_an_unknown_cluster_are_refused_and_traffic_goes_on(site) -> None:
    shift(site, split(5))
    revision = site.router.write(split(6), None)
    document = json.loads(site.router.files.routes.read_text())
    text = json.dumps(document).replace("green_failover", "purple").replace(revision, "1:99:t")
    replace_json(site.router.files.routes, json.loads(text))
    with pytest.raises(RouterRejected):
        await_converged(site, "1:99:t")
    assert {status for status, _, _ in ask(site, 50)} == {200}


def test_without_an_admin_interface_convergence_is_unknown(site) -> None:
    revision = shift(site, split(5))
    stop_router(site.router_state)
    assert site.router.converged(revision) is None


def test_a_port_in_use_is_a_clear_error(site) -> None:
    stop_router(site.router_state)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", site.place.port))
        other.listen()
        with pytest.raises(ConfigError, match=f"port {site.place.port} of the router is in use"):
            site.start_router()


@pytest.mark.parametrize("stream", [False, True])
def test_a_candidate_that_fails_every_request_fails_none_for_users(site, stream) -> None:
    both_up(site, {"failure_fraction": 1.0})
    shift(site, split(50))
    answers = ask(site, 200, stream=stream)
    assert {(status, server) for status, server, _ in answers} == {(200, "blue")}
    assert any(attempts == "2" for _, _, attempts in answers)
    large = ask(site, 8, stream=stream, prompt="x" * (2 * 1024 * 1024))
    assert {(status, server) for status, server, _ in large} == {(200, "blue")}
    requests = site.logged()
    candidate = [request for request in requests if request.arm == "green"]
    assert len(candidate) > 50
    assert all(request.fault and not request.lost for request in candidate)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stable_server_that_dies_fails_no_user_while_a_candidate_is_healthy(site, stream) -> None:
    both_up(site)
    shift(site, split(5))
    site.control.stop("blue")
    answers = ask(site, 200, stream=stream)
    assert {(status, server) for status, server, _ in answers} == {(200, "green")}
    requests = site.logged()
    blamed = {(request.arm, request.on_trial, request.fault, request.lost) for request in requests}
    assert blamed == {("blue", False, True, False), ("green", True, False, False)}


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_standby_answers_where_production_is_dead_and_gets_nothing_else(site, stream) -> None:
    both_up(site)
    want = all_to("blue", owner="t", epoch=2, standby="green")
    revision = shift(site, want)
    state, at = site.router.read()
    assert (state.same_traffic(want), state.standby, at) == (True, "green", revision)
    assert {(status, server) for status, server, _ in ask(site, 30, stream=stream)} == {(200, "blue")}
    site.control.stop("blue")
    assert {(status, server) for status, server, _ in ask(site, 60, stream=stream)} == {(200, "green")}
    site.control.ensure("blue")
    assert {(status, server) for status, server, _ in ask(site, 30, stream=stream)} == {(200, "blue")}
    requests = site.logged()
    assert {(request.arm, request.on_trial, request.lost) for request in requests} == {("blue", False, False)}
    assert sum(request.fault for request in requests) == 60, "what another server answered for production"
    shift(site, all_to("blue", owner="t", epoch=3))
    site.control.stop("blue")
    assert {status for status, _, _ in ask(site, 10, stream=stream)} == {503}, "who stands by nobody gets no user"


@pytest.mark.thorough
def test_a_candidate_that_was_just_ejected_answers_where_stable_dies(site) -> None:
    both_up(site)
    shift(site, split(98))
    site.control.stop("green")
    assert {(status, server) for status, server, _ in ask(site, 100)} == {(200, "blue")}
    assert site.router.usable("green") is False
    site.control.ensure("green")
    site.control.stop("blue")
    assert {(status, server) for status, server, _ in ask(site, 100)} == {(200, "green")}


def test_an_error_inside_a_stream_is_seen_in_the_access_log(site) -> None:
    ask(site, 3, stream=True, prompt="break in the middle")
    requests = site.logged()
    assert Counter(request.lost for request in requests) == {True: 3}
