"""What people click in a real browser, in a real Airflow whose address has a path: our pages, and our connections."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from one_token_hub import KEY, hub
from real_airflow import make_home
from store_history import History, a_refused_and_a_serving_release
from waiting import until

from docs.screenshots import Browser, _log_in
from llm_pipeline.demo import local_airflow
from llm_pipeline.demo.local_airflow import AirflowAccess, AirflowClient

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium is installed"),
]

PORT = 18597
AXE = Path(__file__).parents[2] / ".pipeline/axe/package/axe.min.js"  # `make axe` fetches it
FRAME = "document.querySelector('iframe')?.contentWindow"
WIDTHS = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"


@dataclass(frozen=True)
class Site:
    """An API server below `/airflow`, and the ids of a release that was rejected and of one that serves."""

    access: AirflowAccess
    releases: tuple[str, str]


@pytest.fixture(scope="module")
def site(tmp_path_factory, make_project, empty_database) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("pages")
    project = make_project(root)
    releases = a_refused_and_a_serving_release(History(root))
    home = root / "airflow"
    make_home(home, empty_database)
    password = local_airflow._password(home)
    environment = local_airflow._environment(home, PORT, project.config.parent)
    url = f"http://127.0.0.1:{PORT}/airflow"
    environment |= {"AIRFLOW__API__BASE_URL": url, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment["AIRFLOW__CORE__TEST_CONNECTION"] = "Enabled"
    with (root / "log").open("w") as log:
        command = [sys.executable, "-m", "airflow", "api-server"]
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        until(lambda: server.poll() is not None or _answers(url), 600)
        assert server.poll() is None, (root / "log").read_text()[-2000:]
        yield Site(AirflowAccess(url=url, password=password), releases)
    finally:
        os.killpg(server.pid, 9)
        server.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/api/v2/version", timeout=30).is_success
    except httpx.HTTPError:
        return False


def browse(site: Site, visit, *, width: int = 1200) -> None:
    async def session() -> None:
        async with Browser(width=width, timeout_seconds=300.0) as browser:
            await _log_in(browser, site.access)
            await visit(browser)

    asyncio.run(session())


async def open_page(browser: Browser, site: Site, path: str, text: str) -> None:
    await browser.open(f"{site.access.url}/llm-pipeline/{path}")
    await browser.wait_for(f"(document.body?.innerText ?? '').includes({text!r})", text)


def test_the_page_is_found_from_airflow_s_menu_and_its_links_stay_below_the_path(site):
    _, second = site.releases

    async def visit(browser: Browser) -> None:
        await browser.open(f"{site.access.url}/plugin/llm-releases")
        await browser.wait_for(f"({FRAME}?.document?.body?.innerText ?? '').includes('All releases')", "the list")
        assert await browser.evaluate(f"{FRAME}.location.pathname") == "/airflow/llm-pipeline/releases"
        links = await browser.evaluate(
            f"[...{FRAME}.document.querySelectorAll('a, form')].map(e => e.href ?? e.action)"
        )
        assert links
        assert all(link.startswith(f"{site.access.url}/llm-pipeline/") for link in links)
        await browser.evaluate(f"{FRAME}.document.querySelector('a[href$=\"{second}/report\"]').click()")
        await browser.wait_for(f"{FRAME}?.location?.pathname?.endsWith('/report')", "the report")
        assert "/airflow/llm-pipeline/dags/" in await browser.evaluate(f"{FRAME}.location.pathname")

    browse(site, visit)


def pages(site: Site) -> dict[str, str]:
    """Each page's path, and a text on it."""
    first, second = site.releases
    return {
        "releases": "All releases",
        f"compare?release={first}&release={second}": "Gates",
        "releases?text=nothing": "What serves where",
        "dags/release__tiny/runs/none/report": "No report yet",
    }


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is missing: run `make axe`")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(site, scheme):
    async def visit(browser: Browser) -> None:
        await browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        for path, text in pages(site).items():
            await open_page(browser, site, path, text)
            await browser.evaluate(AXE.read_text() + ";1")
            found = await browser.evaluate("axe.run().then(r => r.violations.map(v => [v.id, v.impact, v.help]))")
            assert found == [], path

    browse(site, visit)


def test_on_a_narrow_screen_only_tables_scroll(site):
    async def visit(browser: Browser) -> None:
        for path, text in pages(site).items():
            await open_page(browser, site, path, text)
            assert await browser.evaluate(WIDTHS) == [390, 390]

    browse(site, visit, width=390)


@pytest.mark.parametrize(("token", "shown"), [(KEY, "the token is that of anna"), ("other", "Test Connection Failed")])
def test_the_button_beside_a_connection_says_whether_the_hub_takes_its_token(site, token, shown):
    with hub() as url, AirflowClient(site.access) as client:
        host, _, port = url.rpartition(":")
        named = {"connection_id": "the_hub", "conn_type": "llm_hub", "host": host, "port": int(port)}
        client.call("POST", "/api/v2/connections", json={**named, "password": token})

        async def visit(browser: Browser) -> None:
            await browser.open(f"{site.access.url}/connections")
            await browser.wait_for("(document.body?.innerText ?? '').includes('the_hub')", "the connection")
            await browser.click("Test Connection")
            told = "document.querySelector('[data-scope=toast]')?.innerText"
            await browser.wait_for(f"!!{told}", "the answer")
            assert shown in await browser.evaluate(told)

        try:
            browse(site, visit)
        finally:
            client._send("DELETE", "/api/v2/connections/the_hub")
