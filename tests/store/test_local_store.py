"""What the store on a disk promises beyond the contract of every store (`test_store_contract.py`)."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.errors import IntegrityError


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["a named pipe", "a directory"])
def test_what_is_no_file_in_place_of_a_document_is_an_error_and_holds_nobody(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    store = LocalStore(f"file://{tmp_path}")
    (tmp_path / "pointers/org").mkdir(parents=True)
    make(tmp_path / "pointers/org/model.json")
    with pytest.raises(IntegrityError, match=r"not a regular file.*model\.json|model\.json.*not a regular file"):
        store.read_document("pointers/org/model.json")
    with pytest.raises(IntegrityError, match="not a regular file"):
        store.read_file("pointers/org/model.json")
