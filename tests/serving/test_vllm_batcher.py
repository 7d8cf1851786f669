"""The batcher and its process over a double of vLLM: what is sent, what ends, what an engine that died leaves."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

pytest.importorskip("transformers")

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from waiting import until

from llm_pipeline.serving.models import vllm_batcher
from llm_pipeline.serving.models.vllm_batcher import Batcher, Settings

ROOT = Path(__file__).parents[2]
DOUBLE = Path(__file__).parents[1] / "doubles" / "vllm_package"
LIMITS = {
    "maximum_sequences": 4, "maximum_tokens_per_request": 128, "maximum_batched_tokens": 64, "kv_cache_blocks": 0,
}  # fmt: skip
PROPERTIES = {"arguments": '{"kv_cache_dtype": "auto"}'}
END_TOKEN = 20
POPEN = subprocess.Popen


@pytest.fixture
def checkpoint(tmp_path):
    directory = tmp_path / "checkpoint"
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(32)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=f"w{END_TOKEN}").save_pretrained(directory)
    return directory


@pytest.fixture
def batcher(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(DOUBLE))
    settings = Settings.of(PROPERTIES, LIMITS, end_tokens=[END_TOKEN])
    made = Batcher(checkpoint, replace(settings, workspace=tmp_path / "workspace"))
    yield made
    made.stop()


def collect(batcher, *names):
    tokens, ends = {name: [] for name in names}, {}
    while len(ends) < len(names):
        for output in batcher.outputs(30.0):
            tokens[output.name] += output.tokens
            if output.finish_reason or output.error:
                ends[output.name] = output.finish_reason or output.error
    return tokens, ends


def processes(batcher):
    """The engine's processes: those of its group."""
    return in_group(batcher._process.pid)


def in_group(group):
    return alive(psutil.process_iter(), group)


def alive(processes, group=None):
    found = []
    for one in processes:
        with contextlib.suppress(psutil.Error, OSError):  # it has just ended
            if one.is_running() and one.status() != psutil.STATUS_ZOMBIE and group in {None, os.getpgid(one.pid)}:
                found.append(one)
    return found


def test_requests_are_answered_side_by_side_and_end_where_they_must(batcher):
    batcher.submit("short", [0, 5], 3)
    batcher.submit("stopped", [18], 9)
    batcher.submit("on", [18], 5, ignore_eos=True)
    tokens, ends = collect(batcher, "short", "stopped", "on")
    assert tokens == {"short": [6, 7, 8], "stopped": [19, 20], "on": [19, 20, 21, 22, 23]}
    assert ends == {"short": "length", "stopped": "stop", "on": "length"}


def test_the_engine_says_what_it_holds_while_it_works(batcher):
    assert batcher.facts["vllm"] == "0.20.2"
    assert (batcher.blocks, batcher.fits(64 * 16), batcher.fits(64 * 16 + 1)) == (64, True, False)
    batcher.submit("a", [1], 4, ignore_eos=True)
    seen = []
    while not any(output.finish_reason for output in batcher.outputs(30.0)):
        seen.append(batcher.load["cache_usage"])
    assert set(seen) <= {0.25}
    assert (batcher.load["waiting"], batcher.load["preemptions"]) == (3, 1)


def test_of_a_cancelled_request_nothing_more_is_heard(batcher):
    batcher.submit("long", [1], 100_000, ignore_eos=True)
    assert batcher.outputs(30.0)[0].name == "long"
    batcher.cancel("long")
    batcher.submit("next", [1], 2, ignore_eos=True)
    tokens, _ = collect(batcher, "next")
    assert tokens == {"next": [2, 3]}


def test_what_vllm_refuses_or_aborts_is_that_requests_error(batcher):
    batcher.submit("bad", [14], 2)
    batcher.submit("aborted", [15], 9)
    batcher.submit("good", [1], 2)
    tokens, ends = collect(batcher, "bad", "aborted", "good")
    assert "senseless" in ends["bad"]
    assert (tokens["aborted"], ends["aborted"]) == ([16], "vLLM ended it: abort")
    assert tokens["good"] == [2, 3]


def test_a_tokenizer_that_does_not_load_leaves_no_process(checkpoint, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(DOUBLE))
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(POPEN(*a, **k)) or started[-1])
    (checkpoint / "tokenizer.json").write_text("{")
    with pytest.raises(Exception):  # noqa: B017 - whatever Transformers throws
        Batcher(checkpoint, Settings.of(PROPERTIES, LIMITS))
    assert [process.poll() is not None for process in started] == [True]


def has_ended(batcher):
    batcher.outputs(0.1)
    return not batcher.is_running


def test_an_engine_that_died_is_started_again_and_nothing_of_it_is_left(batcher):
    before = processes(batcher)
    assert len(before) == 3
    batcher.submit("deadly", [13], 2)
    until(lambda: has_ended(batcher))
    batcher.start()
    assert batcher.is_running
    assert alive(before) == []
    batcher.submit("alive", [1], 2)
    assert collect(batcher, "alive")[0] == {"alive": [2, 3]}


def test_a_worker_that_dies_ends_the_engine_at_once_though_vllm_says_nothing(batcher):
    before = processes(batcher)
    (worker,) = (one for one in before if "VLLM::Worker_TP1" in one.cmdline())
    batcher.submit("long", [1], 100_000, ignore_eos=True)
    worker.kill()
    until(lambda: has_ended(batcher))
    batcher.start()
    assert alive(before) == []


def test_a_killed_process_and_a_stop_leave_no_engine_that_holds_memory(batcher):
    before = processes(batcher)
    batcher._process.kill()
    batcher.start()
    assert alive(before) == []
    before = processes(batcher)
    batcher.stop()
    assert alive(before) == []
    batcher.stop()


def test_no_engine_outlives_whoever_started_it(checkpoint, tmp_path):
    code = (
        f"import json, os, sys; sys.path[:0] = [{str(ROOT)!r}]; from pathlib import Path; "
        "from llm_pipeline.serving.models.vllm_batcher import Batcher, Settings; "
        f"settings = Settings.of({PROPERTIES!r}, {LIMITS!r}); "
        f"made = Batcher(Path({str(checkpoint)!r}), Settings(settings.arguments, None, Path({str(tmp_path)!r}))); "
        "print(made._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(DOUBLE)}, stdout=subprocess.PIPE, check=False
    )
    group = int(ended.stdout)
    until(lambda: not in_group(group))


@pytest.mark.parametrize(
    ("has_vllm", "tokens", "why"),
    [(True, 5000, "greater than the derived one"), (False, 128, "No module named 'vllm'")],
)
def test_a_load_that_fails_says_why(checkpoint, tmp_path, monkeypatch, *, has_vllm, tokens, why):
    monkeypatch.setenv("PYTHONPATH", str(DOUBLE) if has_vllm else "")
    settings = Settings.of(PROPERTIES, LIMITS | {"maximum_tokens_per_request": tokens})
    with pytest.raises(RuntimeError, match=why):
        Batcher(checkpoint, replace(settings, workspace=tmp_path / "workspace"))


def test_a_server_finds_what_the_build_compiled(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(DOUBLE))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    kept = tmp_path / "home/.cache/vllm/torch_compile_cache"

    def serve(release: str) -> list[str]:
        compiled = tmp_path / release / vllm_batcher.COMPILED_DIRECTORY / "torch_compile_cache"
        compiled.mkdir(parents=True, exist_ok=True)
        (compiled / f"graph-of-{release}").write_text("compiled")
        Batcher(checkpoint, Settings.of(PROPERTIES, LIMITS, tmp_path / release)).stop()
        return sorted(path.name for path in kept.glob("graph-*"))

    assert serve("first") == ["graph-of-first"]
    (kept / "graph-of-its-own").touch()
    assert serve("first") == ["graph-of-first", "graph-of-its-own"]  # what a server itself compiled stays
    assert serve("second") == ["graph-of-second"]  # and goes with the engine that it was for
