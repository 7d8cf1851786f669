from __future__ import annotations

import contextvars
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from llm_pipeline.base import confinement
from llm_pipeline.base.confinement import confined, landlock_version

needs_landlock = pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")


@pytest.fixture
def inside(tmp_path):
    directory = tmp_path / "inside"
    directory.mkdir()
    (directory / "file").write_text("inside")
    return directory


@pytest.fixture
def outside(tmp_path):
    path = tmp_path / "outside"
    path.write_text("outside")
    return path


def test_the_named_directory_can_be_read_and_the_result_comes_back(inside):
    assert confined((inside / "file").read_text, [inside]) == "inside"


@needs_landlock
def test_another_file_cannot_be_read(inside, outside):
    with pytest.raises(PermissionError):
        confined(outside.read_text, [inside])
    assert outside.read_text() == "outside"  # this thread goes on as before


@needs_landlock
@pytest.mark.parametrize("way", ["link", "parent", "proc"])
def test_no_detour_leads_to_another_file(inside, outside, way):
    (inside / "link").symlink_to(outside)
    proc = Path(f"/proc/self/root{outside}")
    path = {"link": inside / "link", "parent": inside / ".." / "outside", "proc": proc}[way]
    with pytest.raises(PermissionError):
        confined(path.read_text, [inside])


@needs_landlock
def test_code_below_python_is_bound_too(inside, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(path))
    tokenizers.Tokenizer.from_file(str(path))
    with pytest.raises(Exception, match="Permission denied"):
        confined(lambda: tokenizers.Tokenizer.from_file(str(path)), [inside])


@needs_landlock
def test_threads_and_programs_that_it_starts_are_bound_too(inside, outside):
    def in_a_thread():
        caught = []

        def read():
            try:
                outside.read_text()
            except PermissionError as error:
                caught.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
        return caught

    assert confined(in_a_thread, [inside])
    cat = confined(lambda: subprocess.run(["cat", outside], check=False, capture_output=True, text=True), [inside])
    assert "Permission denied" in cat.stderr


@pytest.mark.skipif(landlock_version() < 4, reason="this kernel's Landlock has no rules for TCP")
def test_no_connection_can_be_made(inside):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        socket.create_connection(address).close()
        with pytest.raises(PermissionError):
            confined(lambda: socket.create_connection(address), [inside])


@needs_landlock
def test_with_the_network_allowed_files_stay_denied(inside, outside):
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = lambda: socket.create_connection(server.getsockname())  # noqa: E731
        confined(connect, [inside], network=True).close()
    with pytest.raises(PermissionError):
        confined(outside.read_text, [inside], network=True)


@needs_landlock
def test_a_checkout_on_the_import_path_is_not_opened_whole(inside, outside, monkeypatch):
    monkeypatch.syspath_prepend(str(outside.parent))
    with pytest.raises(PermissionError):
        confined(outside.read_text, [inside])


@needs_landlock
def test_a_file_moved_in_from_outside_stays_unread(inside, outside):
    def move():
        return outside.rename(inside / "moved").read_bytes()

    with pytest.raises(OSError, match=r"cross-device|denied"):
        confined(move, [inside])


def test_errors_come_back_as_they_are_and_context_is_kept(inside):
    variable = contextvars.ContextVar("variable")
    variable.set("kept")
    assert confined(variable.get, [inside]) == "kept"
    with pytest.raises(ZeroDivisionError):
        confined(lambda: 1 // 0, [inside])


def test_without_landlock_it_runs_and_says_so_once(inside, outside, monkeypatch, caplog):
    monkeypatch.setattr(confinement, "landlock_version", lambda: 0)
    confinement._tell_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert [confined(outside.read_text, [inside]) for _ in range(2)] == ["outside"] * 2
    assert caplog.text.count("has no Landlock") == 1
    confinement._tell_once.cache_clear()


@needs_landlock
@pytest.mark.skipif(os.getuid() != 0, reason="this process is unprivileged, so the other tests show it")
def test_it_needs_no_root(tmp_path_factory):
    with tempfile.TemporaryDirectory() as name:
        inside, outside = Path(name) / "inside", Path(name) / "outside"
        inside.mkdir()
        (inside / "file").write_text("inside")
        outside.write_text("outside")
        Path(name).chmod(0o755)
        _read_as_nobody(inside, outside)


def _read_as_nobody(inside, outside):
    script = (
        "import json, os, pathlib, sys; from llm_pipeline.base.confinement import confined\n"
        "os.setgid(65534); os.setuid(65534); inside, outside = map(pathlib.Path, sys.argv[1:])\n"
        "def read():\n    try: return outside.read_text()\n    except PermissionError: return 'denied'\n"
        "print(json.dumps([outside.read_text(), confined((inside / 'file').read_text, [inside]), "
        "confined(read, [inside])]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, inside, outside], check=True, capture_output=True, text=True, timeout=60
    )
    assert json.loads(done.stdout) == ["outside", "inside", "denied"]
