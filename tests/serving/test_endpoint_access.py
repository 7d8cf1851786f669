"""Headers and certificates of an endpoint reach the server, and nobody else."""

import asyncio
import json
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from scripted_answers import answering

from llm_pipeline.base.errors import ConfigError, IntegrityError, Transient
from llm_pipeline.base.verdict import Evidence, Verdict
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.client import Generation, GenerationClient, GenerationRequest
from llm_pipeline.serving.endpoint_access import active_requests, require_served, served_name, tls_context
from llm_pipeline.serving.probes import Served, departures_free

SECRET = "5esame-0pen"
WHOLE = {
    "model": "llm", "choices": [{"text": "a", "finish_reason": "length"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, Path]:
    """A certificate of this host that only those trust who are told to, and its key."""
    root = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-subj", "/CN=gateway", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", root / "key.pem", "-out", root / "certificate.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    return root / "certificate.pem", root / "key.pem"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_GATEWAY_KEY", SECRET)


@asynccontextmanager
async def gateway(certificate: tuple[Path, Path], **changes: object) -> AsyncIterator[Endpoint]:
    """A gateway with TLS that lets in who carries the key."""

    async def answer(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {SECRET}":
            return web.json_response({"error": "who are you?"}, status=403)
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "llm", "root": served_name("c" * 64)}]})
        return web.json_response(WHOLE)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    values = {"api_key_variable": "TEST_GATEWAY_KEY", "ca_file": str(certificate[0]), **changes}
    try:
        yield Endpoint(url=f"https://127.0.0.1:{port}", **values)
    finally:
        await runner.cleanup()


def generated(certificate: tuple[Path, Path], **changes: object) -> Generation:
    async def ask() -> Generation:
        async with (
            gateway(certificate, **changes) as endpoint,
            GenerationClient.of(endpoint, timeout_seconds=5) as client,
        ):
            return await client.generate(GenerationRequest("a", 1))

    return asyncio.run(ask())


def test_a_client_carries_the_headers_and_trusts_the_certificate(certificate):
    assert generated(certificate).text == "a"
    assert generated(certificate, api_key_variable=None).status == 403


def test_a_certificate_that_nobody_vouches_for_is_an_error_of_the_request(certificate):
    answer = generated(certificate, ca_file=None)
    assert not answer.ok
    assert "certificate" in answer.error.lower()
    assert SECRET not in answer.error


def test_identity_is_let_in_the_same_way(certificate):
    async def ask() -> None:
        async with gateway(certificate) as endpoint:
            await asyncio.to_thread(require_served, endpoint, "c" * 64)
            distrustful = endpoint.model_copy(update={"ca_file": None})
            with pytest.raises(Transient, match="CERTIFICATE_VERIFY_FAILED"):
                await asyncio.to_thread(require_served, distrustful, "c" * 64)

    asyncio.run(ask())


@pytest.mark.parametrize("value", ["sec\nret", "sec\x7fret", "geheim\u00e4", " padded"])
def test_a_value_that_no_header_may_hold_is_refused_by_the_name_of_its_variable(monkeypatch, value):
    monkeypatch.setenv("TEST_GATEWAY_KEY", value)
    endpoint = Endpoint(url="http://127.0.0.1:9", api_key_variable="TEST_GATEWAY_KEY")
    with pytest.raises(ConfigError, match="TEST_GATEWAY_KEY") as refused:
        endpoint.headers()
    assert value not in str(refused.value)


def test_certificates_that_cannot_be_read_are_named_before_anything_is_asked(tmp_path):
    endpoint = Endpoint(url="https://127.0.0.1:9", ca_file=str(tmp_path / "no.pem"))
    for open_it in (tls_context, GenerationClient.of):
        with pytest.raises(ConfigError, match=r"no\.pem"):
            open_it(endpoint)
    assert tls_context(Endpoint(url="http://127.0.0.1:9")) is None


@pytest.mark.parametrize(
    ("page", "active"),
    [
        ("llm_active_requests 2\n", 2),
        ('llm_active_requests{a="b"} 2 1700000000000\nllm_active_requests{a="c"} 1\n', 3),
        ("llm_active_requests +Inf\n", None),
        ("llm_active_requests NaN\n", None),
        ("llm_active_requests many\n", None),
        ("llm_active_requests_created 9\n", None),
        ('llm_active_requests{a="b"} 1e308\nllm_active_requests{a="c"} 1e308\n', None),
    ],
)
def test_a_drain_waits_for_what_is_a_number_of_requests(page, active):
    with answering({"/metrics": (200, page)}) as url:
        assert active_requests(Endpoint(url=url, metrics_url=f"{url}/metrics")) == active


def test_one_of_our_servers_serves_a_release_that_it_states_to_serve() -> None:
    ours = [{"id": "org/model", "root": served_name("c" * 64)}]
    with answering({"/v1/models": (200, json.dumps({"data": ours}))}) as url:
        require_served(Endpoint(url=url), "c" * 64)
        with pytest.raises(IntegrityError, match="not repository dddddddddddd"):
            require_served(Endpoint(url=url), "d" * 64)
    several = {"/v1/models": (200, json.dumps({"data": [*ours, {"id": "other"}]}))}
    with answering(several) as url, pytest.raises(IntegrityError, match="has the models org/model, other, not one"):
        require_served(Endpoint(url=url), "c" * 64)


def test_a_stream_without_a_line_end_is_a_fault_of_the_server_and_no_end_of_the_probe():
    pages = {"/metrics": (200, "llm_active_requests 0\n"), "/v1/completions": (200, "x" * 2_000_000)}

    async def probed(url: str) -> Evidence:
        endpoint = Endpoint(url=url, metrics_url=f"{url}/metrics")
        async with GenerationClient.of(endpoint, timeout_seconds=5) as client:
            streamed = await client.stream(GenerationRequest("a", 1))
            assert streamed.error.startswith("not an answer from the model")
            assert len(streamed.error) < 1000
            return await departures_free(Served(client, endpoint, (), 2048))

    with answering(pages) as url:
        assert asyncio.run(probed(url)).verdict is Verdict.NO_GO


@pytest.mark.parametrize("status", [200, 503])
@pytest.mark.parametrize("kind", ["error", "text"])
@pytest.mark.parametrize("before", range(255, 300, 12))
def test_no_part_of_a_secret_is_told_wherever_a_client_cuts_an_error(kind, status, before):
    said = "x" * before + SECRET + "y" * 500
    body = json.dumps({"error": said}) if kind == "error" else said
    endpoint = {"api_key_variable": "TEST_GATEWAY_KEY"}

    async def both(url: str) -> list[str]:
        request = GenerationRequest("a", 1)
        async with GenerationClient.of(Endpoint(url=url, **endpoint), timeout_seconds=5) as client:
            return [(await ask(request)).error for ask in (client.generate, client.stream)]

    for form in (body, f"data: {body}\n\n"):
        with answering({"/v1/completions": (status, form)}) as url:
            for error in asyncio.run(both(url)):
                assert error
                assert "5es" not in error
                assert len(error) <= 400
