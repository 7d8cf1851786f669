"""The report in a real browser: axe finds nothing that keeps somebody from reading it, in light and dark."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from docs.screenshots import Browser
from llm_pipeline.reporting.html import render_report

AXE = Path(__file__).parents[2] / ".pipeline/axe/package/axe.min.js"

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium is installed"),
    pytest.mark.skipif(not AXE.exists(), reason="axe-core is missing: run `make axe`"),
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("ended", ["promoted", "rolled_back"])
def test_axe_finds_nothing(ended, scheme, request, tmp_path):
    release = request.getfixturevalue(ended)
    page = tmp_path / "report.html"
    page.write_text(render_report(release.report()))

    async def visit() -> list[list[str]]:
        async with Browser(width=1200, timeout_seconds=120.0) as browser:
            await browser.call(
                "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
            )
            await browser.open(page.as_uri())
            await browser.wait_for(
                "document.readyState == 'complete' && document.querySelectorAll('h2').length > 2", "it"
            )
            await browser.evaluate(AXE.read_text() + ";1")
            return await browser.evaluate(
                "axe.run().then(r => r.violations.map(v => [v.id, v.impact, v.help, v.nodes[0].html.slice(0, 200)]))"
            )

    assert asyncio.run(visit()) == []
