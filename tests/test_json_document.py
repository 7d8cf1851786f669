from __future__ import annotations

import json
import os

import pytest

from llm_pipeline.base import json_document
from llm_pipeline.base.errors import IntegrityError


def _file(tmp_path, data):
    path = tmp_path / "config.json"
    path.write_bytes(data)
    return path


def test_what_a_publisher_writes_is_read_as_it_is(tmp_path):
    written = {"a": [1, 2.5, None, True, "é 😀"], "model_max_length": 1000000000000000019884624838656}
    for ascii_only in (True, False):
        path = _file(tmp_path, json.dumps(written, ensure_ascii=ascii_only).encode())
        assert json_document.read_object(path) == written


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"{", "Expecting property name"),
        (b"", "Expecting value"),
        (b"[1]", "not a JSON object"),
        (b'{"a": 1} {}', "Extra data"),
        (b'{"a": 1, "b": 2, "a": 3}', "the key 'a' occurs twice"),
        (b'{"a": {"b": 1, "b": 1}}', "the key 'b' occurs twice"),
        (b'{"a": NaN}', "the number NaN is not finite"),
        (b'{"a": -Infinity}', "the number -Infinity is not finite"),
        (b'{"a": 1e999}', "the number 1e999 is not finite"),
        (b'{"a": ' + b"9" * 5000 + b"}", "Exceeds the limit"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "byte 0 is not UTF-8"),
        (b'\xef\xbb\xbf{"a": 1}', "BOM"),
        (b'{"a": "\\ud800"}', "half of a surrogate pair"),
        (b'{"a": ' * 200_000 + b"1" + b"}" * 200_000, "nested deeper than can be read"),
        (b'{"a": "' + b"x" * 2000 + b'"}', "longer than the 1,000 bytes"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else value,
)
def test_what_no_publisher_writes_is_an_integrity_error_that_names_the_file(tmp_path, data, problem):
    path = _file(tmp_path, data)
    limit = 1_000 if "bytes" in problem and "UTF-8" not in problem else json_document.MAXIMUM_BYTES
    with pytest.raises(IntegrityError, match=problem) as refused:
        json_document.read_object(path, maximum_bytes=limit)
    assert refused.value.where == str(path)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("kind", ["missing", "directory", "pipe"])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path, kind):
    path = tmp_path / "config.json"
    if kind == "directory":
        path.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(IntegrityError, match="there is no such file"):
        json_document.read(path)
