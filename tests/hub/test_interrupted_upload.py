"""A push that fails at any of its requests: the next one finishes it, with one commit in all."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hub_faults import Fault

from llm_pipeline.base.errors import PipelineError, Transient
from llm_pipeline.demo.hub import HubRepository
from llm_pipeline.hub.access import Hub, connect

from .conftest import CONFIG, TOKEN_VARIABLE, LocalHub
from .test_upload import FILES, REPOSITORY, files_of, push, read_back, requests

REQUESTS = [
    ("GET", "/revision/main"),
    ("POST", "/repos/create"),
    ("POST", "/validate-yaml"),
    ("POST", "/preupload/main"),
    ("POST", "/objects/batch"),
    ("PUT", ""),
    ("POST", "/objects/verify"),
    ("POST", "/commit/main"),
]
KINDS: list[dict[str, object]] = [
    *({"kind": "status", "status": status} for status in (429, 500, 502, 503)),
    {"kind": "unanswered"},
    {"kind": "mangled"},
]
FAULTS = [Fault.model_validate({**kind, "times": times}) for kind in KINDS for times in (1, 99)]
QUICK = [
    Fault(kind="status", status=502, times=1), Fault(kind="unanswered", times=99), Fault(kind="mangled", times=1),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own waits between attempts."""
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _seconds: None)


def commits(local_hub: LocalHub) -> list[str]:
    """All commits but the hub's own, which every repository begins with."""
    repository = HubRepository(local_hub.root / REPOSITORY, REPOSITORY)
    return sorted(path.stem for path in (repository.directory / "commits").iterdir())[1:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [one if one in QUICK else pytest.param(one, marks=pytest.mark.thorough) for one in FAULTS],
    ids=lambda one: f"{one.kind} {one.status}, {one.times} times",
)
@pytest.mark.parametrize("asked", REQUESTS)
def test_a_push_that_fails_anywhere_is_finished_by_the_next_with_one_commit(
    local_hub: LocalHub, writer: Hub, tmp_path: Path, asked: tuple[str, str], fault: Fault
) -> None:
    method, path = asked
    files = files_of(tmp_path / "files")
    local_hub.faults.waiting.append(fault.model_copy(update={"path_ends_with": path, "method": method}))
    first = None
    misread = fault.kind == "mangled" and method in ("GET", "PUT")  # by its shape it is no hub's
    with contextlib.suppress(PipelineError if misread else Transient):  # any other error is a fault
        first = push(writer, files)
    local_hub.faults.waiting.clear()
    second = push(writer, files)
    assert first is None or (second.commit, second.made) == (first.commit, False)
    assert len(commits(local_hub)) == 1
    assert read_back(local_hub, tmp_path / "client", second.commit) == FILES


@pytest.mark.parametrize(("method", "path"), [("POST", "/validate-yaml"), ("POST", "/commit/main")])
def test_a_hub_that_has_too_much_to_do_may_be_asked_again(
    local_hub: LocalHub, writer: Hub, tmp_path: Path, method: str, path: str
) -> None:
    local_hub.fail("status", path, method=method, status=429)
    with pytest.raises(Transient):
        push(writer, files_of(tmp_path))
    assert push(writer, files_of(tmp_path)).made


def test_a_commit_whose_answer_is_a_page_of_a_proxy_is_found(local_hub: LocalHub, writer: Hub, tmp_path: Path) -> None:
    local_hub.fail("mangled", "/commit/main", method="POST")
    assert push(writer, files_of(tmp_path)).made
    assert len(requests(local_hub, "POST", "/commit/main")) == 1


def test_who_pushes_right_after_us_makes_no_error_of_our_commit(
    local_hub: LocalHub, writer: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told to push again, which would have taken the other one's files away."""
    create = writer.api.create_commit
    others = files_of(tmp_path / "2", config__json=CONFIG + b"\n")

    def overtaken(*arguments: object, **options: object) -> object:
        monkeypatch.setattr(writer.api, "create_commit", create)
        made = create(*arguments, **options)
        push(connect(local_hub.endpoint, TOKEN_VARIABLE), others)
        return made

    monkeypatch.setattr(writer.api, "create_commit", overtaken)
    pushed = push(writer, files_of(tmp_path / "1"))
    assert pushed.made
    assert read_back(local_hub, tmp_path / "client", pushed.commit) == FILES
    assert len(commits(local_hub)) == 2
