"""Broken files and failing disks, through the command line: one clear error, and never the exit code of a verdict."""

from __future__ import annotations

import builtins
import errno
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deployment_here import write_bare_deployment
from resolved_release import request_below
from unprivileged import directory_for_everyone, mode, without_root

from llm_pipeline.base.errors import ConfigError, ExitCode, IntegrityError, Transient, unless_io
from llm_pipeline.cli import main
from llm_pipeline.release import execute as execution
from llm_pipeline.release.contract import Produced, Stage, StageContext, StageOutput, StageRequest
from llm_pipeline.serving.triton_runtime import link_repository
from llm_pipeline.store import open_store

ROOT = Path(__file__).parents[1]
NEITHER_VERDICT = (ExitCode.BAD_INPUT, ExitCode.INFRASTRUCTURE)
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture
def configs(configs: Path, tmp_path: Path) -> Path:
    (tmp_path / ".envs").symlink_to(ROOT / ".envs")  # a plan looks for interpreters
    return configs


@pytest.mark.parametrize("line", [DEEP, f'{{"prompt": {DEEP}}}', f'{{"output_tokens": {"9" * 5000}}}'])
def test_prompts_that_no_parser_can_read_are_bad_input_with_their_line(
    configs: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    prompts = configs / "workloads/demo.jsonl"
    prompts.write_text('{"prompt": "a"}\n' + line + "\n")
    assert main(["plan", str(configs / "releases/demo.yaml")]) == ExitCode.BAD_INPUT
    error = capsys.readouterr().err
    assert f"{prompts}:2: not a JSON object" in error
    assert "Traceback" not in error


# --- disks


class NothingConfig(execution.Frozen):
    """Of a stage that writes one file."""


@pytest.fixture
def request_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], StageRequest]:
    """Requests of a stage that writes a megabyte in its work directory."""

    def run(context: StageContext[NothingConfig]) -> StageOutput:
        output = context.workdir / "out"
        output.mkdir()
        (output / "weights").write_bytes(os.urandom(1_000_000))
        return StageOutput(artifacts={"weights": Produced("weights", output)}, metrics={})

    stage = Stage(name="write", version=1, config=NothingConfig, run=run)
    monkeypatch.setattr(execution, "load_stage", lambda _name: stage)
    return lambda work: request_below(tmp_path, "write", {}, work_root=str(work))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("size=64k", "free disk space"),
        ("size=64k,ro", "mount the file system for writing"),
        ("nr_inodes=2", "free disk"),
    ],
)
def test_a_work_disk_that_is_full_or_read_only_is_transient(
    request_on: Callable[[Path], StageRequest], small_disk: Callable[[str], Path], options: str, words: str
) -> None:
    outcome = execution.execute(request_on(small_disk(options)))
    assert isinstance(outcome, execution.StageFailure)
    assert (outcome.error.family, outcome.error.exit_code) == ("transient", ExitCode.INFRASTRUCTURE)
    assert words in outcome.error.hint


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE], ids=errno.errorcode.get)
def test_a_file_system_that_fails_in_the_middle_of_a_stage_is_transient(
    request_on: Callable[[Path], StageRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    failing(monkeypatch, tmp_path / "work", number)
    outcome = execution.execute(request_on(tmp_path / "work"))
    assert isinstance(outcome, execution.StageFailure)
    assert outcome.error.family == "transient"
    assert outcome.error.where.startswith(str(tmp_path / "work"))
    assert outcome.error.hint


def failing(monkeypatch: pytest.MonkeyPatch, below: Path, number: int) -> None:
    """Let files of a directory fail as they are opened, for whatever opens them."""
    real = io.open

    def opening(file: Any, *arguments: Any, **options: Any) -> Any:
        if str(file).startswith(str(below)):
            raise OSError(number, os.strerror(number), str(file))
        return real(file, *arguments, **options)

    monkeypatch.setattr(io, "open", opening)
    monkeypatch.setattr(builtins, "open", opening)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.ETIMEDOUT], ids=errno.errorcode.get)
@pytest.mark.parametrize("file", ["workloads/demo.jsonl", "tasks/demo/demo_choice.jsonl"])
def test_a_file_of_the_user_that_the_disk_does_not_give_is_infrastructure(
    configs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: str, number: int
) -> None:
    failing(monkeypatch, configs / file, number)
    assert main(["plan", str(configs / "releases/demo.yaml")]) == ExitCode.INFRASTRUCTURE
    told = capsys.readouterr().err
    assert f"error: {os.strerror(number)} -> " in told
    assert f"[{configs / file}]" in told


def test_a_plan_that_cannot_be_written_is_infrastructure_if_the_disk_is_full_and_else_bad_input(
    tmp_path: Path, small_disk: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    from llm_pipeline.cli.options import write_files

    with pytest.raises(Transient, match="No space left on device"):
        write_files(small_disk("size=64k"), {"plan.txt": "x" * 100_000})
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_files(tmp_path / "file", {"plan.txt": "x"})


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), IntegrityError),
        (PermissionError(errno.EACCES, "Permission denied"), IntegrityError),
        (ValueError("not JSON"), IntegrityError),
        (OSError(errno.EIO, "Input/output error"), Transient),
        (TimeoutError("timed out"), Transient),
    ],
)
def test_a_file_is_called_damaged_only_if_it_was_read(raised: Exception, kind: type[Exception]) -> None:
    assert type(unless_io(raised, IntegrityError("damaged"))) is kind


# --- what a store may hold after a power cut


def cut(path: Path) -> None:
    path.write_bytes(b"")


def garble(path: Path) -> None:
    path.write_bytes(b'{"revision": "1", "value": ' + DEEP.encode() + b"}")


def replace(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("break_it", [cut, garble, replace])
@pytest.mark.parametrize(
    "document", ["places/cpu.json", "releases/r1/release.json", "stages/0.json", "claims/demo/tiny.json"]
)
def test_a_document_of_the_store_that_is_broken_ends_no_command_like_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], document: str, break_it: Callable[[Path], None]
) -> None:
    here = write_bare_deployment(tmp_path / "here.yaml")
    path = tmp_path / "store" / document
    path.parent.mkdir(parents=True)
    path.touch()
    break_it(path)
    for command in (["ls"], ["gc"], ["claims"], ["guard"], ["verify", "r1"], ["show", "production:demo/tiny/cpu"]):
        code = main([*command, "-d", here])
        said = capsys.readouterr()
        assert code in (ExitCode.GO, *NEITHER_VERDICT), (command, said.err)
        if code:
            told = "error: " in said.err or "DAMAGED" in said.out or "failed" in said.out
            assert told, (command, said)


@pytest.mark.parametrize("content", ["", "{", "null", '{"pid": "x"}'])
def test_a_process_record_that_is_broken_ends_no_command_like_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    here = write_bare_deployment(tmp_path / "here.yaml")
    record = tmp_path / "w/jobs/r1/download/1/process.json"
    record.parent.mkdir(parents=True)
    record.write_text(content)
    code = main(["gc", "--delete", "-d", here])
    assert code in (ExitCode.GO, *NEITHER_VERDICT)
    assert code == ExitCode.GO or "error: " in capsys.readouterr().err


def test_a_file_that_may_not_grow_is_infrastructure(tmp_path: Path) -> None:
    program = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from llm_pipeline.cli import main; raise SystemExit(main(sys.argv[1:]))"
    )
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run(
            [sys.executable, "-c", program, "--help"],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": ""},  # unbuffered, Python loses what does not fit without a word
        )
    assert done.returncode == ExitCode.INFRASTRUCTURE
    assert "File too large -> raise the limit on the size of a file" in done.stderr


def test_a_store_that_another_user_made_says_what_to_do() -> None:
    with directory_for_everyone() as directory:
        store = open_store(f"file://{directory}")
        store.write_document("index/a.json", {}, None)
        with without_root(directory), mode(directory / "index", 0o555), pytest.raises(Transient) as raised:
            store.write_document("index/b.json", {}, None)
    assert str(raised.value).startswith("cannot write index/b.json: Permission denied -> give")


def test_what_another_user_left_of_a_servers_view_is_named() -> None:
    with directory_for_everyone() as directory:
        model = directory / "view" / "llm"
        for path in (directory / "repository" / "llm", model):
            path.mkdir(parents=True)
            (path / "config.pbtxt").touch()
        with without_root(directory), mode(model, 0o555), pytest.raises(PermissionError, match=r"config\.pbtxt"):
            link_repository(directory / "repository", directory / "view")
