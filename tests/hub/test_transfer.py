"""Whatever a source does, in whatever order: what a transfer accepts is the file."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_pipeline.artifacts.pinned import HubFile, PinnedModel
from llm_pipeline.base.progress import last_progress
from llm_pipeline.hub.directory_source import DirectorySource
from llm_pipeline.hub.git_ids import blob_id
from llm_pipeline.hub.source import Body, SourceUnavailable, WrongBytes
from llm_pipeline.hub.transfer import PartialFile, SourceTooSlow, Transfer, difference

CONTENT = bytes(range(256)) * 4
MODEL = PinnedModel(id="demo/tiny", commit="0" * 40, files=())
BY_SHA256 = HubFile(path="w.safetensors", size=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest())
BY_BLOB = HubFile(path="w.json", size=len(CONTENT), blob_sha1=blob_id(CONTENT))

KINDS = (
    "cut",
    "short",
    "whole",
    "no range",
    "flip",
    "longer",
    "nothing",
    "unavailable",
    "damaged at the end",
    "no range, cut",
)
FAULTS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, len(CONTENT))), max_size=12)


@dataclass
class FaultySource:
    """A source that does one thing of a script at each request, and answers well when the script is at its end."""

    script: list[tuple[str, int]] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def resolve(self, model_id: str, revision: str) -> PinnedModel:
        raise NotImplementedError

    @contextmanager
    def open(self, model: PinnedModel, file: HubFile, start: int) -> Iterator[Body]:  # noqa: ARG002
        self.asked.append(start)
        kind, number = self.script.pop(0) if self.script else ("whole", 0)
        if kind == "unavailable":
            raise SourceUnavailable("later")
        first = 0 if kind.startswith("no range") else start
        yield Body(first, self._chunks(CONTENT[first:], kind, number))

    def _chunks(self, data: bytes, kind: str, number: int) -> Iterator[bytes]:
        if kind == "flip" and data:
            position = number % len(data)
            data = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        cut = kind.endswith("cut")
        end = number if cut or kind == "short" else 0 if kind == "nothing" else len(data)
        for offset in range(0, end, 100):
            yield data[offset : min(offset + 100, end)]
        if kind == "longer":
            yield b"x" * (number + 1)
        if cut:
            raise SourceUnavailable("cut")
        if kind == "damaged at the end":
            raise WrongBytes("the source's own checksum differs")


@pytest.fixture(autouse=True, scope="module")
def _no_waits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transfer, "_backoff_unit_seconds", 0.0)
        yield


@settings(max_examples=150, deadline=None)
@given(
    script=FAULTS,
    file=st.sampled_from([BY_SHA256, BY_BLOB]),
    left=st.integers(0, 2 * len(CONTENT)),
    sound=st.booleans(),
)
def test_what_is_accepted_is_the_file_and_what_is_left_is_of_no_harm(
    script: list[tuple[str, int]], file: HubFile, left: int, *, sound: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        transfer = Transfer(FaultySource(script), MODEL, Path(folder))
        transfer.partial_file(file).write_bytes(
            (CONTENT if sound else CONTENT[::-1])[:left] + b"!" * (left - len(CONTENT))
        )
        try:
            assert transfer.fetch(file).read_bytes() == CONTENT
        except (SourceUnavailable, WrongBytes):
            again = Transfer(FaultySource(), MODEL, Path(folder))
            assert again.fetch(file).read_bytes() == CONTENT


@given(cuts=st.lists(st.integers(1, 200), max_size=20))
@settings(max_examples=50, deadline=None)
def test_no_byte_that_came_is_asked_for_again(cuts: list[int]) -> None:
    source = FaultySource([("cut", cut) for cut in cuts])
    with tempfile.TemporaryDirectory() as folder:
        assert Transfer(source, MODEL, Path(folder)).fetch(BY_SHA256).read_bytes() == CONTENT
    came = [min(sum(cuts[:number]), len(CONTENT)) for number in range(len(source.asked))]
    assert source.asked == came


def test_a_source_that_always_starts_again_and_never_gets_further_is_given_up(tmp_path: Path) -> None:
    source = FaultySource([("no range, cut", 500), ("no range, cut", 400)] * 50)
    with pytest.raises(SourceUnavailable):
        Transfer(source, MODEL, tmp_path).fetch(BY_SHA256)
    assert len(source.asked) == 5


@pytest.mark.parametrize("left", [CONTENT[::-1], CONTENT + b"more"])
def test_wrong_bytes_of_an_earlier_process_do_not_use_up_the_second_chance(tmp_path: Path, left: bytes) -> None:
    transfer = Transfer(FaultySource([("flip", 7)]), MODEL, tmp_path)
    transfer.partial_file(BY_SHA256).write_bytes(left)
    assert transfer.fetch(BY_SHA256).read_bytes() == CONTENT


def test_a_link_in_place_of_a_partial_file_is_not_written_through(tmp_path: Path) -> None:
    transfer = Transfer(FaultySource(), MODEL, tmp_path)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    transfer.partial_file(BY_SHA256).symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        transfer.fetch(BY_SHA256)
    assert victim.read_text() == "mine"


def test_reading_what_is_there_already_is_progress(tmp_path: Path) -> None:
    (path := tmp_path / "w.safetensors").write_bytes(CONTENT)
    reads: dict[str, Callable[[], object]] = {
        "a file of an earlier attempt": lambda: difference(path, BY_SHA256),
        "a part of one": lambda: PartialFile(path, BY_SHA256).__exit__(None, None, None),
        "a directory's": lambda: DirectorySource(tmp_path)._hashed(path.name),
    }
    for what, read in reads.items():
        began = time.monotonic()
        read()
        assert (last_progress() or 0.0) >= began, what


def test_a_source_that_drips_bytes_is_given_up_although_each_attempt_gets_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Transfer, "_rate_window_seconds", 0.05)

    class Dripping(FaultySource):
        def _chunks(self, data: bytes, kind: str, number: int) -> Iterator[bytes]:  # noqa: ARG002
            for byte in data:
                time.sleep(0.01)
                yield bytes([byte])

    source = Dripping()
    with pytest.raises(SourceTooSlow, match="fewer than 10000 a second"):
        Transfer(source, MODEL, tmp_path).fetch(BY_SHA256)
    assert len(source.asked) == 5
    assert source.asked == sorted(source.asked), "every attempt went on where the one before had stopped"
