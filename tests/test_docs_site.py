"""The documentation's site builds strictly, holds every page, and shows what CommonMark reads in each of them."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from llm_pipeline.base.errors import ExitCode
from llm_pipeline.cli import _parser

ROOT = Path(__file__).parents[1]
PACKAGES = ROOT / ".envs" / "docs"
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md") if path.name != "README.md")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PACKAGES.is_dir():
        pytest.skip("the packages of the site are missing: run `make docs`")
    built = tmp_path_factory.mktemp("site")
    path = os.pathsep.join([str(PACKAGES), str(ROOT), str(ROOT / "plugins")])
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return built


def article(site: Path, page: str) -> str:
    """The HTML of a page's own text."""
    folder = site / page.removesuffix(".md")
    text = (folder / "index.html").read_text()
    return text.partition("<article")[2].partition("</article>")[0]


def counted(html: str) -> dict[str, int]:
    """How many items, tables, rows and headings it has, and how many blocks of code."""
    found = {tag: len(re.findall(rf"<{tag}[ >]", html)) for tag in ("li", "table", "tr", "h1", "h2", "h3", "pre")}
    return found | {"fences": html.count("```")}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_site_has_the_lists_tables_and_blocks_of_its_markdown(site: Path, page: str) -> None:
    from markdown_it import MarkdownIt

    text = (ROOT / "docs" / page).read_text()
    expected = counted(MarkdownIt("commonmark").enable("table").render(text))
    assert counted(article(site, page)) == expected


def test_the_reference_has_every_command_option_exit_code_and_metric(site: Path) -> None:
    page = article(site, "reference/commands")
    (commands,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    for name, parser in commands.choices.items():
        assert f'<h2 id="{name}">' in page
        shown = [action for action in parser._actions if action.help not in (None, argparse.SUPPRESS)]
        assert not [option for action in shown for option in action.option_strings if f"{option}" not in page]
    codes = article(site, "reference/exit-codes")
    assert all(f"<td>{code.value}</td>\n<td><code>{code.name}</code>" in codes for code in ExitCode)
    metrics = article(site, "reference/metrics") + article(site, "notifications")
    scraped = "\n".join(path.read_text() for path in (ROOT / "tests/docker/exports").glob("*.txt"))
    assert set(re.findall(r"^(llm_\w+)", scraped, re.MULTILINE)) <= set(re.findall(r"<code>(llm_\w+)</code>", metrics))


def test_no_page_holds_a_path_of_the_machine_that_built_it(site: Path) -> None:
    assert not [page for page in site.rglob("*.html") if str(ROOT) in page.read_text()]


def test_the_site_asks_nobody_else_for_anything(site: Path) -> None:
    outside = re.compile(r"""<(?:script|link|img)\b[^>]*(?:src|href)=["']?(?:https?:)?//""")
    assert not [page for page in site.rglob("*.html") if outside.search(page.read_text())]
