"""Pushing files to a hub: one commit, resumable, checked; by the real client against the local hub."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import HfApi, snapshot_download
from waiting import until

from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.base.errors import ConfigError, IntegrityError, Transient
from llm_pipeline.demo.hub import HubRepository
from llm_pipeline.hub.access import Hub, HubRefused, HubUnavailable, connect
from llm_pipeline.hub.download import download_model
from llm_pipeline.hub.hub_source import HubSource
from llm_pipeline.hub.upload import Pushed, PushedFile, push_files

from .conftest import CONFIG, TOKEN, TOKEN_VARIABLE, LocalHub, content, safetensors_bytes

REPOSITORY = "acme/tiny-fp8"
MARKER = "llm_pipeline/release.json"
WEIGHTS = safetensors_bytes()
FILES = {
    "README.md": b"---\nlicense: apache-2.0\n---\n# Tiny\n",
    "config.json": CONFIG,
    "empty.txt": b"",
    "model.safetensors": WEIGHTS,
    "tokenizer.json": b'{"version": "1.0"}',
    MARKER: b"{}\n",
}


OF_THE_MODEL = ("config.json", "model.safetensors", "tokenizer.json")


def files_of(directory: Path, **changes: bytes | None) -> list[PushedFile]:
    """The files on disk (and the card in memory); `changes` replace or leave out, `__` standing for a dot."""
    contents = FILES | {name.replace("__", "."): data for name, data in changes.items()}
    found = []
    for path, data in contents.items():
        if data is None:
            continue
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(data)
        content = data if path == "README.md" else directory / path
        found.append(PushedFile(path, content, len(data), sha256_bytes(data)))
    return found


def push(hub: Hub, files: list[PushedFile], *, private: bool = False) -> Pushed:
    return push_files(hub, REPOSITORY, files, marker=MARKER, message="Release 1", private=private)


def requests(local_hub: LocalHub, method: str, part: str) -> list[str]:
    return [path for asked, path, _ in local_hub.faults.requests if asked == method and part in path]


def read_back(local_hub: LocalHub, directory: Path, commit: str) -> dict[str, bytes]:
    """What the real client downloads."""
    snapshot_download(REPOSITORY, revision=commit, endpoint=local_hub.endpoint, token=TOKEN, local_dir=directory)
    return {
        path: data for path, data in content(directory).items() if not path.startswith((".cache", ".gitattributes"))
    }


def test_what_was_pushed_is_one_commit_that_is_downloaded_byte_for_byte_and_not_pushed_again(
    local_hub: LocalHub, writer: Hub, tmp_path: Path
) -> None:
    pushed = push(writer, files_of(tmp_path / "files"))
    assert (pushed.made, pushed.url) == (True, f"{local_hub.endpoint}/{REPOSITORY}")
    assert read_back(local_hub, tmp_path / "client", pushed.commit) == FILES
    source = HubSource(writer)
    model = source.resolve(REPOSITORY, "main")
    assert model.commit == pushed.commit
    download_model(source, model, tmp_path / "ours")
    assert content(tmp_path / "ours") == {name: FILES[name] for name in sorted(FILES) if name in OF_THE_MODEL}
    repository = HubRepository(local_hub.root / REPOSITORY, REPOSITORY)
    newest = repository.commit("main")
    assert newest is not None
    assert (newest.id, newest.message) == (pushed.commit, "Release 1")
    assert len(list((repository.directory / "commits").iterdir())) == 2  # every repository begins with the hub's own
    local_hub.faults.requests.clear()
    second = push(writer, files_of(tmp_path / "files"))
    assert (second.made, second.commit) == (False, pushed.commit)
    assert {method for method, _, _ in local_hub.faults.requests} == {"GET"}


def test_another_release_replaces_the_files_and_leaves_none_of_the_old_ones(
    local_hub: LocalHub, writer: Hub, tmp_path: Path
) -> None:
    push(writer, files_of(tmp_path / "1", **{"model-00001-of-00002__safetensors": safetensors_bytes(2048, seed=3)}))
    changed = {"model__safetensors": safetensors_bytes(4096, seed=2), "tokenizer__json": None}
    pushed = push(writer, files_of(tmp_path / "2", **changed))
    found = read_back(local_hub, tmp_path / "client", pushed.commit)
    assert set(found) == FILES.keys() - {"tokenizer.json"}
    assert found["model.safetensors"] == safetensors_bytes(4096, seed=2)


PUSH = """
import pickle, sys
from pathlib import Path
from llm_pipeline.hub.access import connect
from llm_pipeline.hub.upload import push_files
asked, endpoint, variable, repository, marker = sys.argv[1:]
files = pickle.loads(Path(asked).read_bytes())
push_files(connect(endpoint, variable), repository, files, marker=marker, message="Release 1")
"""


def test_killed_while_it_sends_it_goes_on_and_nothing_was_to_be_seen_of_it(
    local_hub: LocalHub, writer: Hub, tmp_path: Path
) -> None:
    """kill -9 in the middle: of two large files one is there, the branch shows neither, and one commit is made."""
    files = files_of(tmp_path, **{"model-00001-of-00002__safetensors": safetensors_bytes(500_000, seed=3)})
    local_hub.fail("hang", "/verify", method="POST", times=99)
    (asked := tmp_path / "asked.pickle").write_bytes(pickle.dumps(files))
    command = [sys.executable, "-c", PUSH, str(asked), local_hub.endpoint, TOKEN_VARIABLE, REPOSITORY, MARKER]
    process = subprocess.Popen(command, env=os.environ | {TOKEN_VARIABLE: TOKEN})
    until(lambda: requests(local_hub, "POST", "/objects/verify"))
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    seen = HfApi(endpoint=local_hub.endpoint, token=TOKEN).list_repo_files(REPOSITORY)
    assert seen == [".gitattributes"]
    assert not requests(local_hub, "POST", "/commit/main")
    local_hub.faults.waiting.clear()
    local_hub.faults.requests.clear()
    pushed = push(writer, files)
    assert len(requests(local_hub, "PUT", "/storage/")) < 2
    assert len(requests(local_hub, "POST", "/commit/main")) == 1
    found = read_back(local_hub, tmp_path / "client", pushed.commit)
    assert {path: found[path] for path in FILES} == FILES


def test_a_commit_whose_answer_was_lost_is_found_by_the_next_push(
    local_hub: LocalHub, writer: Hub, tmp_path: Path
) -> None:
    local_hub.fail("unanswered", "/commit/main", method="POST")
    with pytest.raises(HubUnavailable):
        push(writer, files_of(tmp_path))
    assert not push(writer, files_of(tmp_path)).made
    assert len(requests(local_hub, "POST", "/commit/main")) == 1


@pytest.mark.parametrize(
    "asked", [("GET", "/revision/main"), ("POST", "/preupload/main"), ("PUT", ""), ("POST", "/objects/verify")]
)
def test_a_push_that_fails_anywhere_is_finished_by_the_next_with_one_commit(
    local_hub: LocalHub, writer: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, str]
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _seconds: None)
    local_hub.fail("status", asked[1], method=asked[0], status=503, times=99)
    with pytest.raises(HubUnavailable):
        push(writer, files_of(tmp_path))
    local_hub.faults.waiting.clear()
    assert push(writer, files_of(tmp_path)).made
    assert len(requests(local_hub, "POST", "/commit/main")) == 1


def test_two_who_push_at_once_do_not_mix_their_files(
    local_hub: LocalHub, writer: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(writer, files_of(tmp_path / "1"))
    other = files_of(tmp_path / "2", config__json=CONFIG + b"\n")
    create = writer.api.create_commit

    def late(*arguments: object, **options: object) -> object:
        monkeypatch.setattr(writer.api, "create_commit", create)
        push(connect(local_hub.endpoint, TOKEN_VARIABLE), files_of(tmp_path / "3", config__json=CONFIG + b" "))
        return create(*arguments, **options)

    monkeypatch.setattr(writer.api, "create_commit", late)
    with pytest.raises(Transient, match="A commit has happened since"):
        push(writer, other)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_that_was_changed_after_it_was_hashed_does_not_pass_for_what_was_sent(
    local_hub: LocalHub, writer: Hub, tmp_path: Path, name: str
) -> None:
    files = files_of(tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1] + b"!")
    with pytest.raises(IntegrityError, match=rf"{name}: (changed here since it was hashed|SHA-256)"):
        push(writer, files)


def test_a_repository_of_somebody_s_own_is_not_touched(local_hub: LocalHub, writer: Hub, tmp_path: Path) -> None:
    push(writer, [file for file in files_of(tmp_path) if file.path != MARKER])
    with pytest.raises(ConfigError, match=r"not pushed by this command: config\.json"):
        push(writer, files_of(tmp_path))


def test_a_private_push_to_a_public_repository_is_refused_and_a_new_one_is_private(
    local_hub: LocalHub, writer: Hub, tmp_path: Path
) -> None:
    push(writer, files_of(tmp_path), private=True)
    anonymous = HfApi(endpoint=local_hub.endpoint, token=False)
    assert not anonymous.repo_exists(REPOSITORY)
    assert not push(writer, files_of(tmp_path), private=True).made
    local_hub.restrict(REPOSITORY, private=False)
    with pytest.raises(ConfigError, match="the repository is public"):
        push(writer, files_of(tmp_path, config__json=CONFIG + b"\n"), private=True)


def test_a_token_that_may_not_write_is_told_without_showing_it(
    local_hub: LocalHub, writer: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(writer, files_of(tmp_path))
    monkeypatch.setenv(TOKEN_VARIABLE, "hf_readerofthistestonly")
    reader = connect(local_hub.endpoint, TOKEN_VARIABLE)
    with pytest.raises(HubRefused, match=r"40[13]") as caught:
        push(reader, files_of(tmp_path, config__json=CONFIG + b"\n"))
    assert TOKEN_VARIABLE in caught.value.hint
    assert "hf_reader" not in str(caught.value)
