from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from llm_pipeline.artifacts.pinned import HubFile, PinnedModel
from llm_pipeline.base.errors import ConfigError, IntegrityError, Transient
from llm_pipeline.hub.access import HubRefused, HubUnavailable, connect
from llm_pipeline.hub.download import download_model
from llm_pipeline.hub.hub_source import HubSource
from llm_pipeline.hub.source import SourceUnavailable
from llm_pipeline.hub.transfer import DiskTooSmall, Transfer

from .conftest import CONFIG, TOKEN_VARIABLE, WEIGHTS_BYTES, LocalHub, safetensors_bytes

WEIGHTS = "model.safetensors"


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def model(local_hub: LocalHub, source: HubSource) -> PinnedModel:
    """The small model, published and pinned."""
    local_hub.publish()
    return source.resolve("demo/tiny", "main")


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-off counts, but takes no time."""
    monkeypatch.setattr(Transfer, "_backoff_unit_seconds", 0.01)


def content(directory: Path) -> dict[str, bytes]:
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def expected(local_hub: LocalHub) -> dict[str, bytes]:
    return {name: data for name, data in local_hub.contents.items() if name != "README.md"}


def test_the_destination_holds_the_selected_files_and_nothing_else(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path
) -> None:
    report = download_model(source, model, tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == expected(local_hub)
    assert (report.files, report.fetched_files, report.bytes) == (3, 3, model.size)
    assert report.fetched_bytes == model.size
    assert not (tmp_path / "checkpoint.partial").exists()
    assert {name for name, _ in local_hub.downloads()} == set(expected(local_hub))


def test_a_second_call_fetches_nothing(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path
) -> None:
    download_model(source, model, tmp_path / "checkpoint")
    before = len(local_hub.downloads())
    report = download_model(source, model, tmp_path / "checkpoint")
    assert (report.fetched_files, report.fetched_bytes) == (0, 0)
    assert len(local_hub.downloads()) == before


def test_the_pinned_commit_is_fetched_after_the_branch_moved(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path
) -> None:
    wanted = expected(local_hub)
    local_hub.publish(config__json=CONFIG + b" ")
    download_model(source, model, tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == wanted


def test_a_cut_connection_is_resumed_at_its_byte(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path
) -> None:
    local_hub.fail("cut", WEIGHTS, after_bytes=1_000_000, times=2)
    download_model(source, model, tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == expected(local_hub)
    ranges = [wanted for _, wanted in local_hub.downloads(WEIGHTS)]
    assert ranges[0] is None
    starts = [int(str(wanted).removeprefix("bytes=").removesuffix("-")) for wanted in ranges[1:]]
    assert len(starts) == 2
    assert 0 < starts[0] < starts[1] < WEIGHTS_BYTES


def test_a_server_that_ignores_ranges_starts_the_file_again(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path
) -> None:
    local_hub.fail("cut", WEIGHTS, after_bytes=1_000_000)
    local_hub.fail("no_range", WEIGHTS)
    download_model(source, model, tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == expected(local_hub)
    assert len(local_hub.downloads(WEIGHTS)) == 2


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_right_size_and_wrong_bytes_are_found_and_fetched_again(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path, name: str
) -> None:
    local_hub.fail("corrupt", name)
    download_model(source, model, tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == expected(local_hub)
    assert len(local_hub.downloads(name)) == 2


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_wrong_bytes_twice_are_an_integrity_error_that_names_the_file(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path, name: str
) -> None:
    local_hub.fail("corrupt", name, times=2)
    with pytest.raises(IntegrityError, match=name):
        download_model(source, model, tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint" / name).exists()


def test_a_file_changed_on_disk_afterwards_is_fetched_again(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path
) -> None:
    download_model(source, model, tmp_path / "checkpoint")
    damaged = tmp_path / "checkpoint" / WEIGHTS
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    report = download_model(source, model, tmp_path / "checkpoint")
    assert report.fetched_files == 1
    assert content(tmp_path / "checkpoint") == expected(local_hub)


def test_a_partial_file_with_wrong_bytes_does_not_survive(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path
) -> None:
    weights = next(file for file in model.files if file.path == WEIGHTS)
    partial = tmp_path / "checkpoint.partial"
    partial.mkdir()
    (partial / str(weights.sha256)).write_bytes(b"x" * 5000)
    download_model(source, model, tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == expected(local_hub)


def test_a_symbolic_link_in_the_destination_is_replaced_not_followed(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(local_hub.contents["config.json"])
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").symlink_to(outside)
    download_model(source, model, tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint" / "config.json").is_symlink()
    assert outside.read_bytes() == local_hub.contents["config.json"]


def test_foreign_files_in_the_destination_are_neither_kept_nor_deleted_silently(
    source: HubSource, model: PinnedModel, tmp_path: Path
) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"notes\.txt"):
        download_model(source, model, tmp_path / "checkpoint")
    assert (tmp_path / "checkpoint" / "notes.txt").read_text() == "mine"


def test_throttling_is_waited_out(local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path) -> None:
    local_hub.fail("status", WEIGHTS, status=429, retry_after_seconds=1)
    started = time.monotonic()
    download_model(source, model, tmp_path / "checkpoint")
    assert time.monotonic() - started >= 1
    assert content(tmp_path / "checkpoint") == expected(local_hub)


def test_a_wait_of_hours_is_left_to_the_orchestrator(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path
) -> None:
    local_hub.fail("status", WEIGHTS, status=429, retry_after_seconds=7200)
    with pytest.raises(HubUnavailable) as caught:
        download_model(source, model, tmp_path / "checkpoint")
    assert caught.value.retry_after_seconds == 7200


def test_server_errors_are_tried_five_times_and_end_transient(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path
) -> None:
    local_hub.fail("status", WEIGHTS, status=503, times=99)
    with pytest.raises(HubUnavailable, match="503"):
        download_model(source, model, tmp_path / "checkpoint")
    assert len(local_hub.downloads(WEIGHTS)) == 5


def test_interruptions_that_bring_bytes_do_not_use_up_the_attempts(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path
) -> None:
    local_hub.fail("cut", WEIGHTS, after_bytes=300_000, times=9)
    download_model(source, model, tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == expected(local_hub)


@pytest.mark.parametrize("kind", ["short", "cut"])
def test_answers_that_bring_nothing_end_transient_after_five(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path, kind: str
) -> None:
    local_hub.fail(kind, WEIGHTS, after_bytes=0, times=99)
    with pytest.raises(SourceUnavailable):
        download_model(source, model, tmp_path / "checkpoint")
    assert len(local_hub.downloads(WEIGHTS)) == 5


def test_a_body_that_ends_early_as_if_it_were_whole_is_resumed(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path
) -> None:
    local_hub.fail("short", WEIGHTS, after_bytes=1_000_000, times=2)
    download_model(source, model, tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == expected(local_hub)
    assert local_hub.downloads(WEIGHTS)[1:] == [(WEIGHTS, "bytes=1000000-"), (WEIGHTS, "bytes=2000000-")]


def test_a_connection_that_stalls_is_given_up_and_resumed(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HubSource, "_timeout_seconds", 0.2)
    local_hub.fail("stall", WEIGHTS, after_bytes=1_000_000)
    download_model(source, model, tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == expected(local_hub)
    assert local_hub.downloads(WEIGHTS)[1:] == [(WEIGHTS, "bytes=1000000-")]


def test_no_more_connections_than_asked_for(
    local_hub: LocalHub, source: HubSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_hub.publish(**{f"part{number}.json": b"%d" % number for number in range(8)})
    model, at_once, most = source.resolve("demo/tiny", "main"), [], []
    fetch = Transfer.fetch

    def counted(transfer: Transfer, file: HubFile) -> Path:
        at_once.append(file.path)
        most.append(len(at_once))
        time.sleep(0.02)
        try:
            return fetch(transfer, file)
        finally:
            at_once.remove(file.path)

    monkeypatch.setattr(Transfer, "fetch", counted)
    download_model(source, model, tmp_path / "checkpoint", connections=2)
    assert max(most) == 2


@pytest.mark.parametrize("status", [401, 403, 404])
def test_access_lost_between_resolve_and_download_is_terminal_at_the_first_answer(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path, status: int
) -> None:
    local_hub.fail("status", WEIGHTS, status=status)
    with pytest.raises(HubRefused):
        download_model(source, model, tmp_path / "checkpoint")
    assert len(local_hub.downloads(WEIGHTS)) == 1


def test_a_gate_closed_between_resolve_and_download_is_named(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path
) -> None:
    local_hub.restrict("demo/tiny", gated="auto")
    with pytest.raises(HubRefused, match="gated"):
        download_model(source, model, tmp_path / "checkpoint")


def test_no_connection_is_transient(model: PinnedModel, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(HubUnavailable, match="no answer from"):
        download_model(HubSource(connect(f"http://127.0.0.1:{port}", TOKEN_VARIABLE)), model, tmp_path / "checkpoint")


def test_a_disk_too_small_is_found_before_the_first_byte(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9 - 10**6, 10**6))
    with pytest.raises(DiskTooSmall, match="1 MB are free"):
        download_model(source, model, tmp_path / "checkpoint")
    assert local_hub.downloads() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_disk_that_fills_up_leaves_no_visible_file(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 0, 10**9))
        with pytest.raises(DiskTooSmall, match="full"):
            download_model(source, model, disk / "checkpoint")
        assert WEIGHTS not in content(disk / "checkpoint")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_malformed_safetensors_file_with_the_right_hash_is_refused(
    local_hub: LocalHub, source: HubSource, tmp_path: Path
) -> None:
    local_hub.publish(model__safetensors=safetensors_bytes(5000)[:-100])
    with pytest.raises(IntegrityError, match="truncated"):
        download_model(source, source.resolve("demo/tiny", "main"), tmp_path / "checkpoint")


def test_a_shard_that_the_index_names_and_nobody_uploaded_is_found(
    local_hub: LocalHub, source: HubSource, tmp_path: Path
) -> None:
    index = b'{"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}'
    local_hub.publish(**{"model.safetensors.index.json": index})
    with pytest.raises(IntegrityError, match="00002"):
        download_model(source, source.resolve("demo/tiny", "main"), tmp_path / "checkpoint")


def test_pickles_beside_safetensors_are_not_fetched(local_hub: LocalHub, source: HubSource, tmp_path: Path) -> None:
    local_hub.publish(pytorch_model__bin=b"\x80\x04pickle", **{"modeling_tiny.py": b"import os"})
    download_model(source, source.resolve("demo/tiny", "main"), tmp_path / "checkpoint")
    assert {name for name, _ in local_hub.downloads()} == {"config.json", WEIGHTS, "tokenizer.json"}


def test_two_files_of_the_same_content_are_fetched_once(local_hub: LocalHub, source: HubSource, tmp_path: Path) -> None:
    local_hub.publish(**{"vocab.json": b'{"version": "1.0"}', "merges.txt": b""})
    download_model(source, source.resolve("demo/tiny", "main"), tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == expected(local_hub)


def test_a_file_beyond_the_hub_s_limit_of_one_answer_is_fetched_in_ranges(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HubSource, "_longest_answer", 1_000_000)
    download_model(source, model, tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == expected(local_hub)
    assert [wanted for _, wanted in local_hub.downloads(WEIGHTS)] == [
        "bytes=0-999999", "bytes=1000000-1999999", "bytes=2000000-2999999", "bytes=3000000-"
    ]  # fmt: skip


def test_progress_is_logged_with_bytes_and_time_to_go(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local_hub.fail("slow", WEIGHTS, bytes_per_second=4_000_000)
    caplog.set_level(logging.INFO)
    download_model(source, model, tmp_path / "checkpoint", report_every_seconds=0.1)
    lines = [record.message for record in caplog.records if record.message.startswith("downloading: ")]
    assert len(lines) >= 3
    # "stalled": a busy machine begins late
    pattern = r"downloading: (\d) of 3 MB \((\d+) %\), \d\.\d MB/s, (\d[\d.]* s to go|stalled)"
    told = [re.fullmatch(pattern, line) for line in lines]
    assert all(told), lines
    shares = [int(line[2]) for line in told]
    assert shares == sorted(shares)
    assert shares[0] < shares[-1]
    assert "to go" in lines[-1]


SCRIPT = """
import sys
from pathlib import Path
from llm_pipeline.hub.access import connect
from llm_pipeline.hub.download import download_model
from llm_pipeline.hub.hub_source import HubSource
from llm_pipeline.artifacts.pinned import HubFile, PinnedModel
from llm_pipeline.hub.source import SourceUnavailable
from llm_pipeline.hub.transfer import Transfer
model = PinnedModel.model_validate_json(Path(sys.argv[1]).read_text())
download_model(HubSource(connect(sys.argv[2], "LLM_PIPELINE_TEST_TOKEN")), model, Path(sys.argv[3]))
"""


def start_download(local_hub: LocalHub, model: PinnedModel, destination: Path) -> subprocess.Popen[bytes]:
    pinned = destination.with_name("pinned.json")
    pinned.write_text(model.model_dump_json())
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(pinned), local_hub.endpoint, str(destination)])


def wait_for_bytes(path: Path, size: int) -> None:
    deadline = time.monotonic() + 30
    while not path.exists() or path.stat().st_size < size:
        assert time.monotonic() < deadline, "the download does not move"
        time.sleep(0.005)


@pytest.mark.parametrize("killed_at", [1, 700_000, 2_000_000])
def test_kill_9_at_any_byte_then_the_same_call_fetches_only_what_is_missing(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path, killed_at: int
) -> None:
    local_hub.fail("slow", WEIGHTS, bytes_per_second=2_000_000)
    weights = next(file for file in model.files if file.path == WEIGHTS)
    partial = tmp_path / "checkpoint.partial" / str(weights.sha256)
    process = start_download(local_hub, model, tmp_path / "checkpoint")
    wait_for_bytes(tmp_path / "checkpoint" / "config.json", 1)
    wait_for_bytes(tmp_path / "checkpoint" / "tokenizer.json", 1)
    wait_for_bytes(partial, killed_at)
    process.send_signal(signal.SIGKILL)
    process.wait()
    have = partial.stat().st_size
    assert killed_at <= have < WEIGHTS_BYTES
    assert WEIGHTS not in content(tmp_path / "checkpoint")
    before = len(local_hub.downloads())

    report = download_model(source, model, tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == expected(local_hub)
    assert local_hub.downloads()[before:] == [(WEIGHTS, f"bytes={have}-")]
    assert (report.fetched_files, report.fetched_bytes) == (1, weights.size - have)


def test_a_second_process_does_not_write_into_the_first_one_s_files(
    local_hub: LocalHub, source: HubSource, model: PinnedModel, tmp_path: Path
) -> None:
    local_hub.fail("slow", WEIGHTS, bytes_per_second=1_000_000)
    process = start_download(local_hub, model, tmp_path / "checkpoint")
    try:
        weights = next(file for file in model.files if file.path == WEIGHTS)
        wait_for_bytes(tmp_path / "checkpoint.partial" / str(weights.sha256), 1)
        with pytest.raises(Transient, match="another process"):
            download_model(source, model, tmp_path / "checkpoint")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("weights", ["/models/good.safetensors", "../good.safetensors", "other.safetensors"])
def test_a_configuration_that_names_other_weights_is_refused(
    local_hub: LocalHub, source: HubSource, tmp_path: Path, weights: str
) -> None:
    config = {**json.loads(CONFIG), "transformers_weights": weights}
    local_hub.publish(config__json=json.dumps(config).encode())
    with pytest.raises(IntegrityError, match="'transformers_weights' is") as refused:
        download_model(source, source.resolve("demo/tiny", "main"), tmp_path / "checkpoint")
    assert refused.value.where == "config.json"


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_a_tokenizer_that_names_other_files_is_refused(
    local_hub: LocalHub, source: HubSource, tmp_path: Path, file: str
) -> None:
    local_hub.publish(**{file: b'{"tokenizer_file": "/models/tokenizer.json"}'})
    with pytest.raises(IntegrityError, match=r"'tokenizer_file' is '/models/tokenizer\.json'") as refused:
        download_model(source, source.resolve("demo/tiny", "main"), tmp_path / "checkpoint")
    assert refused.value.where == file


def test_every_json_file_is_read_within_bounds(local_hub: LocalHub, source: HubSource, tmp_path: Path) -> None:
    local_hub.publish(**{"generation_config.json": b"[" * 100_000})
    with pytest.raises(IntegrityError, match="nested deeper") as refused:
        download_model(source, source.resolve("demo/tiny", "main"), tmp_path / "checkpoint")
    assert refused.value.where == "generation_config.json"
