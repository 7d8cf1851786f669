"""Records in files: whatever is wrong with a file is one kind of error that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.json_document import load_record
from llm_pipeline.base.records import ArtifactRef


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"\xff\xfe", b'{"kind": "x", "digest": "y", "more": 1}'])
def test_a_file_that_holds_no_such_record_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "ref.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(IntegrityError) as told:
        load_record(ArtifactRef, path, "no reference")
    assert told.value.message.startswith("no reference: ")
    assert told.value.where == str(path)
    if content is not None:
        assert "another version of this package wrote it: remove its artifact" in told.value.hint
