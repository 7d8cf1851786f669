"""Whatever a document of a store holds: each command works around it or says what is damaged, and `gc` spares what is
in production.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import strategies as st
from mutations import HOSTILE_TEXTS, mutated_bytes, one_of
from store_history import History

from llm_pipeline.base.errors import ExitCode
from llm_pipeline.cli import main

COMMANDS = (
    ("ls", "releases"),
    ("verify", "tiny-00000002-00000064"),
    ("show", "tiny-00000001-00000064"),
    ("gc",),
    ("gc", "--delete"),
    ("claims",),
)
CLEAR_ENDS = (ExitCode.GO, ExitCode.BAD_INPUT, ExitCode.INFRASTRUCTURE)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Two releases: one in production, one before it."""
    history = History(tmp_path_factory.mktemp("sound"))
    for number in (1, 2):
        history.settle(history.release(number))
        history.pass_days(1)
    history.claim("tiny-00000002-00000064")
    return history


def files_of(store: Path) -> list[Path]:
    return sorted(path.relative_to(store) for path in store.rglob("*") if path.is_file() and not path.is_symlink())


def test_any_content_of_any_document_is_survived(sound: History, fuzz, tmp_path: Path, monkeypatch, capsys) -> None:
    original, store = sound.root / "store", tmp_path / "store"
    (tmp_path / "here.yaml").write_text(
        f"{{store: 'file://{store}', work_root: {tmp_path}/w, state_root: {tmp_path}/s, environments: {{}}, "
        f"triton_home: {tmp_path}/t}}\n"
    )
    monkeypatch.setenv("LLM_PIPELINE_DEPLOYMENT", str(tmp_path / "here.yaml"))
    production = sound.repository("tiny-00000002-00000064")
    names = files_of(original)

    def check(example: tuple[Path, tuple[str, ...], st.DataObject]) -> None:
        name, command, data = example
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(original, store, symlinks=True)
        content = data.draw(st.one_of(mutated_bytes((original / name).read_bytes()), one_of(HOSTILE_TEXTS)))
        (store / name).chmod(0o644)
        (store / name).write_bytes(content)
        code = main(list(command))
        told = capsys.readouterr()
        assert code in CLEAR_ENDS, f"{command} with {name}: exit code {code}\n{told.err}"
        assert "Traceback" not in told.err, f"{command} with {name}\n{told.err}"
        if code != ExitCode.GO:
            assert told.err or told.out
        assert (store / "artifacts" / production.kind / production.digest).is_dir(), f"{name}: production is gone"

    fuzz(st.tuples(one_of(names), one_of(COMMANDS), st.data()), check, 30, 3_000)
