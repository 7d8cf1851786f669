"""The HTML report: inert, self-contained, accessible, complete."""

from __future__ import annotations

import re
import unicodedata
from html.parser import HTMLParser

import pytest
from poisoned_text import poisoned_strings

from llm_pipeline.reporting.figure import Plot
from llm_pipeline.reporting.html import draw_plots, render_report

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}\"'&"
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Reader(HTMLParser):
    """Collects tags, attributes and ids, and checks that tags close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    return reader


@pytest.fixture(scope="module")
def plots(promoted_data) -> list[Plot]:
    return list(draw_plots(promoted_data))


def test_nothing_is_loaded_from_anywhere_and_there_is_no_script(promoted_page: str) -> None:
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", promoted_page)
    found = read(promoted_page)
    references = [value for name, value in found.attributes if name in ("src", "href", "xlink:href", "srcset")]
    assert all(reference.startswith("#") for reference in references)
    assert_inert(found)


def assert_inert(found: Reader) -> None:
    assert {"script", "img"}.isdisjoint(found.tags)
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert found.open == []


def test_text_from_outside_is_inert(promoted_data) -> None:
    data = promoted_data.model_copy(update={"description": HOSTILE})
    gate = data.gates[0]
    judgement = gate.judgement.model_copy(update={"summary": HOSTILE})
    study = data.accuracy[0].model_copy(update={"name": HOSTILE})
    data = data.model_copy(
        update={
            "gates": (gate.model_copy(update={"name": HOSTILE, "judgement": judgement}),),
            "headline": data.headline.model_copy(update={"sentence": HOSTILE}),
            "gaps": (HOSTILE,),
            "accuracy": (study,),
            "trials": (data.trials[0].model_copy(update={"name": HOSTILE}),),
            "loads": (data.loads[0].model_copy(update={"target": HOSTILE}),),
            "canaries": {},
        }
    )
    html = render_report(data)
    assert_inert(read(html))
    assert "49" not in re.findall(r"alert\(2\)&gt;(.{0,12})", html)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html


def test_no_poisoned_text_makes_an_element_an_attribute_or_a_hidden_character(promoted_data) -> None:
    poison = tuple(poisoned_strings())
    data = promoted_data.model_copy(update={"accuracy": (), "loads": (), "canaries": {}, "stages": (), "trials": ()})
    html = render_report(data.model_copy(update={"gaps": poison}))
    found = read(html)
    expected = read(render_report(data.model_copy(update={"gaps": ("plain",) * len(poison)})))
    assert (found.tags, found.attributes) == (expected.tags, expected.attributes)
    assert not [one for one in html if one != "\n" and unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert len(html.encode()) < 2_000_000


def test_every_plot_has_a_title_a_description_and_ids_of_its_own(plots: list[Plot], promoted_page: str) -> None:
    names = ["accuracy", "pareto", "latency-cpu", "latency-by-rate-cpu", "over-time-cpu", "canary-cpu"]
    assert [plot.name for plot in plots] == names
    assert all("<title id=" in plot.svg and "<desc id=" in plot.svg and 'role="img"' in plot.svg for plot in plots)
    ids = [value for name, value in read(promoted_page).attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_a_release_that_stopped_early_shows_what_there_is(begun) -> None:
    html = render_report(begun.report())
    assert read(html).open == []
    for told in ("No stage has finished yet.", "no verdict yet"):
        assert told in html
    assert "<figure>" not in html
    begun.measure_baseline()
    begun.try_recipes(["int4_naive"])
    html = render_report(begun.report())
    assert read(html).open == []
    assert "Accuracy lost against the unquantized baseline" in html
    assert "Canary, cpu" not in html


def test_title_header_and_summary_name_model_recipe_and_verdict(promoted_page: str) -> None:
    title = re.findall(r"<title>(.*?)</title>", promoted_page)[0]
    header = promoted_page[promoted_page.index("<header") : promoted_page.index("</header>")]
    for text in ("example/tiny-llama", "recipe fp8", "GO"):
        assert text in title
        assert text in header


def test_an_interval_beyond_the_axis_has_its_numbers(promoted_data, plots: list[Plot]) -> None:
    forest = next(plot for plot in plots if plot.name == "accuracy")
    naive = next(study for study in promoted_data.accuracy if study.name == "int4_naive")
    for part in (naive.comparison.pooled, *naive.comparison.tasks):
        assert part.loss is not None
        numbers = f"{100 * part.loss.estimate:+.2f}  ({100 * part.loss.lower:+.2f} to {100 * part.loss.upper:+.2f})"
        assert f">{numbers}</text>" in forest.svg
