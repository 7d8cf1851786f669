"""JSON that ends a Triton, or is none: what users can post to real servers in both arms of a canary through Envoy."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from canary_site import Site
from hostile_client import ask, ask_in_chunks, generation
from production_site import MODEL_PYTHON, TOY, TRITON_HOME
from test_envoy import shift, split

from llm_pipeline.canary.router import all_to
from llm_pipeline.serving.triton_server import find_server, start_server, stop_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (TRITON_HOME.exists() and MODEL_PYTHON.exists()), reason="no tritonserver or interpreter"),
]

JSON = {"content-type": "application/json"}
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A router before two Tritons with the toy model, half of whose traffic is on trial."""
    place = Site(tmp_path_factory.mktemp("json"))
    repository = Path(shutil.copytree(TOY, place.root / "repository", ignore=shutil.ignore_patterns("__pycache__")))
    try:
        for slot, ports in place.slots.items():
            start_server(
                repository, ports, triton_home=TRITON_HOME, python=MODEL_PYTHON, state=place.root / slot / "triton"
            )
        place.start_router()
        shift(place, split(50))
        yield place
    finally:
        place.down()
        for slot in place.slots:
            stop_server(place.root / slot / "triton")


def post(site: Site, body: bytes, path: str = "generate") -> int:
    return ask(site.place.port, "POST", f"/v2/models/llm/{path}", body, JSON).status


def assert_both_serve(site: Site) -> None:
    assert all(find_server(site.root / slot / "triton") for slot in site.slots)
    assert Counter(post(site, generation("a b", 3)) for _ in range(8)) == {200: 8}
    assert site.router.usable("green")


def test_nested_json_ends_no_server_whatever_is_around_it_and_wherever_it_is_posted(site) -> None:
    lists = b"[" * 200_000
    bodies = {
        "lists": lists,
        "objects": b'{"text_input":' * 200_000,
        "within a request": b'{"text_input":"a","parameters":{"x":' + lists + b"]" * 200_000 + b"}}",
        "after an escape": b'{"text_input":"\\\\",' + b'"x":[' * 200_000,
        "after blanks": b" " * 3 * MIB + lists,
        "after a mark": b"\xef\xbb\xbf" + lists,
        "wide letters": b"\xff\xfe" + lists.decode().encode("utf-16-le"),
    }
    found = {what: {post(site, body) for _ in range(2)} for what, body in bodies.items()}
    assert found == {what: {400} for what in bodies}
    paths = {"generate_stream": 400, "versions/1/generate": 404, "infer": 404, "generate?x": 400}
    assert {path: post(site, lists, path) for path in paths} == paths
    answer = ask_in_chunks(site.place.port, "/v2/models/llm/generate", iter([b"[" * 1000] * 200))
    assert (answer.status, b"levels" in answer.body) == (400, True)
    assert_both_serve(site)


def test_brackets_within_a_prompt_are_text(site) -> None:
    assert post(site, generation('[{"' * 1000 + "\\", 3)) == 200


@pytest.mark.parametrize("on_trial", [True, False])
def test_what_is_no_request_is_refused_and_is_nobodys_fault(site, on_trial: bool) -> None:
    shift(site, split(50) if on_trial else all_to("blue", owner="t", epoch=1))
    bodies = [b"", b"{", b"[]", b'{"text_input": 5}', b'{"text_input": "a", "max_tokens": "many"}', b'"\\ud800"']
    site.logged()
    end = site.router.access_log().end()
    answers = [
        ask(site.place.port, "POST", f"/v2/models/llm/{verb}", body, JSON)
        for body in bodies * 4
        for verb in ("generate", "generate_stream")
    ]
    assert Counter(answer.status for answer in answers) == {400: len(answers)}
    assert {answer.fields["x-envoy-attempt-count"] for answer in answers} == {"2" if on_trial else "1"}
    assert Counter((one.refused, one.fault) for one in site.logged(end)) == {(True, False): len(answers)}
    if on_trial:
        assert_both_serve(site)
