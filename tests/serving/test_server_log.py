"""What a server's log says of its engine's death."""

from __future__ import annotations

import pytest

from llm_pipeline.serving.server_log import engine_death

OURS = "2026-11-28T04:00:{:02}Z vLLM's engine is dead: its process VLLM::Worker_TP1, pid 7, has ended"
VLLMS = "(EngineCore pid=6) ERROR 11-28 04:00:01 [multiproc_executor.py:273] Worker proc VllmWorker-1 died unexpectedly"
AFTER = '2026-11-28T04:00:09Z E 5 model.py:298] "llm: the engine failed: its thread ended; starting it again"'


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([OURS.format(1), AFTER], OURS.format(1)),
        ([OURS.format(1), AFTER, OURS.format(30), AFTER], OURS.format(30)),
        (["I one line", f"  {VLLMS}  ", "ERROR EngineDeadError"], VLLMS),
        ([VLLMS, OURS.format(1), VLLMS], OURS.format(1)),
        (["I one line", AFTER], AFTER),
        (["I all is well"], ""),
        ([], ""),
    ],
    ids=[
        "its process before what follows",
        "the last of two",
        "as vLLM says it",
        "ours first",
        "no process is named",
        "none",
        "empty",
    ],
)
def test_the_last_death_is_told_with_its_process(tmp_path, lines, said):
    (tmp_path / "server.log").write_text("\n".join(lines))
    assert engine_death(tmp_path / "server.log") == said


def test_without_a_log_nothing_is_known(tmp_path):
    assert engine_death(tmp_path / "server.log") == ""
