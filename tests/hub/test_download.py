from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from time import sleep
from types import SimpleNamespace

import pytest
from huggingface_hub import get_session

from llm_pipeline.artifacts.pinned import PinnedModel
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.hub.access import HubRefused, HubUnavailable, connect
from llm_pipeline.hub.download import DiskTooSmall, WrongBytes, download_model
from llm_pipeline.hub.hub_source import HubSource

from .conftest import CONFIG, TOKEN_VARIABLE, LocalHub, content, expected, safetensors_bytes

WEIGHTS = "model.safetensors"


def free(count: int) -> Callable[[Path], SimpleNamespace]:
    """In place of `shutil.disk_usage`."""
    return lambda _: SimpleNamespace(free=count)


@pytest.fixture
def model(local_hub: LocalHub, source: HubSource) -> PinnedModel:
    """The small model, published and pinned."""
    local_hub.publish()
    return source.resolve("demo/tiny", "main")


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own waits between attempts."""
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _seconds: None)


def test_the_destination_holds_the_selected_files_and_nothing_else(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path
) -> None:
    assert sorted(download_model(source, model, tmp_path / "checkpoint"), key=lambda file: file.path) == [*model.files]
    assert content(tmp_path / "checkpoint") == expected(local_hub)
    assert not (tmp_path / "checkpoint.partial").exists()
    before = [path for _, path, _ in local_hub.faults.requests]
    assert {name for name, _ in local_hub.downloads()} == set(expected(local_hub))
    assert download_model(source, model, tmp_path / "checkpoint") == []
    assert [path for _, path, _ in local_hub.faults.requests] == before


def test_the_pinned_commit_is_fetched_after_the_branch_moved(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path
) -> None:
    wanted = expected(local_hub)
    local_hub.publish(config__json=CONFIG + b" ")
    download_model(source, model, tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == wanted


@pytest.mark.parametrize(
    "fault", [("corrupt", "config.json"), ("corrupt", WEIGHTS), ("cut", WEIGHTS), ("short", WEIGHTS)]
)
def test_what_came_wrong_is_fetched_again(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path, fault: tuple[str, str]
) -> None:
    kind, name = fault
    local_hub.fail(kind, name, after_bytes=50)
    if kind == "short":  # for the client, a transfer that failed
        with pytest.raises(HubUnavailable, match="should be of size"):
            download_model(source, model, tmp_path / "checkpoint")
        assert name not in content(tmp_path / "checkpoint")
    download_model(source, model, tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == expected(local_hub)
    assert len(local_hub.downloads(name)) == 2


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_wrong_bytes_twice_are_an_integrity_error_that_names_the_file(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path, name: str
) -> None:
    local_hub.fail("corrupt", name, times=2)
    with pytest.raises(WrongBytes, match=name):
        download_model(source, model, tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint" / name).exists()


def test_what_lies_there_and_is_not_the_file_is_replaced(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path
) -> None:
    """A damaged file, a link to the right bytes, and what another process left half."""
    download_model(source, model, tmp_path / "checkpoint")
    damaged = tmp_path / "checkpoint" / WEIGHTS
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    (outside := tmp_path / "outside").write_bytes(CONFIG)
    (tmp_path / "checkpoint/config.json").unlink()
    (tmp_path / "checkpoint/config.json").symlink_to(outside)
    (tmp_path / "checkpoint.partial").mkdir()
    (tmp_path / "checkpoint.partial" / WEIGHTS).write_bytes(b"half")
    assert len(download_model(source, model, tmp_path / "checkpoint")) == 2
    assert content(tmp_path / "checkpoint") == expected(local_hub)
    assert not (tmp_path / "checkpoint/config.json").is_symlink()
    assert outside.read_bytes() == CONFIG


def test_server_errors_end_transient_and_do_not_pass_for_damage(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path
) -> None:
    local_hub.fail("status", WEIGHTS, method=None, status=503, times=99)
    with pytest.raises(HubUnavailable, match="503"):
        download_model(source, model, tmp_path / "checkpoint")
    local_hub.faults.waiting.clear()
    download_model(source, model, tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == expected(local_hub)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_access_lost_between_resolve_and_download_is_terminal(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path, status: int
) -> None:
    local_hub.fail("status", WEIGHTS, method=None, status=status, times=9)
    with pytest.raises(HubRefused):
        download_model(source, model, tmp_path / "checkpoint")


def test_no_connection_is_transient_and_leaves_the_session_to_other_threads(model: PinnedModel, tmp_path: Path) -> None:
    """The client would close it; whoever takes it just then is given None, which would pass for a wrong answer."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    nobody, session = HubSource(connect(f"http://127.0.0.1:{port}", TOKEN_VARIABLE)), get_session()
    with pytest.raises(HubUnavailable, match="no answer from"):
        download_model(nobody, model, tmp_path / "checkpoint")
    assert get_session() is session
    assert not session.is_closed


def test_a_disk_too_small_is_found_before_the_first_byte(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", free(10**6))
    with pytest.raises(DiskTooSmall, match="3 MB are still to be fetched and only 1 MB are free") as refused:
        download_model(source, model, tmp_path / "not" / "there" / "checkpoint")
    assert f"work_root ({tmp_path}" in refused.value.where
    assert local_hub.downloads() == []
    monkeypatch.setattr(shutil, "disk_usage", free(model.size))
    download_model(source, model, tmp_path / "checkpoint")


def test_a_disk_that_fills_up_leaves_no_visible_file(
    small_disk: Callable[[str], Path], source: HubSource, model: PinnedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = small_disk("size=2m") / "checkpoint"
    monkeypatch.setattr(shutil, "disk_usage", free(10**9))
    with pytest.raises(OSError, match="No space left on device"):
        download_model(source, model, destination)
    assert WEIGHTS not in content(destination)


@pytest.mark.parametrize(
    ("file", "uploaded", "problem"),
    [
        (WEIGHTS, safetensors_bytes(5000)[:-100], "truncated"),
        (
            "config.json",
            json.dumps({**json.loads(CONFIG), "transformers_weights": "/models/good.safetensors"}).encode(),
            "'transformers_weights' is",
        ),
        ("generation_config.json", b"[" * 100_000, "nested deeper"),
    ],
    ids=["cut weights", "other weights", "JSON without bounds"],
)
def test_files_with_the_right_hashes_that_are_no_sound_model_are_refused(
    local_hub: LocalHub, source: HubSource, tmp_path: Path, *, file: str, uploaded: bytes, problem: str
) -> None:
    local_hub.publish(**{file: uploaded})
    with pytest.raises(IntegrityError, match=problem) as refused:
        download_model(source, source.resolve("demo/tiny", "main"), tmp_path / "checkpoint")
    assert refused.value.where == file


SCRIPT = """
import sys
from pathlib import Path
from llm_pipeline.artifacts.pinned import PinnedModel
from llm_pipeline.hub.access import connect
from llm_pipeline.hub.download import download_model
from llm_pipeline.hub.hub_source import HubSource
model = PinnedModel.model_validate_json(Path(sys.argv[1]).read_text())
download_model(HubSource(connect(sys.argv[2], "LLM_PIPELINE_TEST_TOKEN")), model, Path(sys.argv[3]))
"""


def test_kill_9_then_the_same_call_goes_on_with_the_files_that_were_whole(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path
) -> None:
    local_hub.fail("slow", WEIGHTS, bytes_per_second=500_000)
    destination = tmp_path / "checkpoint"
    (pinned := tmp_path / "pinned.json").write_text(model.model_dump_json())
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, pinned, local_hub.endpoint, destination])
    deadline, whole = time.monotonic() + 60, ("config.json", "tokenizer.json")
    while not (local_hub.downloads(WEIGHTS) and all((destination / name).exists() for name in whole)):
        assert time.monotonic() < deadline, "the download does not move"
        sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert WEIGHTS not in content(destination)
    before = len(local_hub.downloads())
    assert [file.path for file in download_model(source, model, destination)] == [WEIGHTS]
    assert content(destination) == expected(local_hub)
    assert [name for name, _ in local_hub.downloads()[before:]] == [WEIGHTS]
