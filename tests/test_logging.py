from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator

import pytest

from llm_pipeline.base.errors import Terminal
from llm_pipeline.base.logging import FAILURES, Lines, LogRelay, clean_records, get_logger, write_json_lines
from llm_pipeline.base.progress import Progress

from .poisoned_text import GO, JSON_LINE, LONG_TEXT, poisoned_strings

SIGNED = "https://cdn.example/x?Expires=1&Signature=0123456789abcdef&Key-Pair-Id=K2"
SECRET = "0123456789abcdef"
ALL = [text for text in poisoned_strings() if len(text) < LONG_TEXT // 2]
log = get_logger("llm_pipeline.test")


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Each test sets up the logs of the process by itself."""
    root, factory = logging.getLogger(), logging.getLogRecordFactory()
    level, handlers = root.level, root.handlers[:]
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.setLogRecordFactory(factory)
    logging.captureWarnings(capture=False)


@pytest.fixture
def stage() -> io.StringIO:
    """What a stage's process writes."""
    stream = io.StringIO()
    write_json_lines(stream)
    return stream


class Kept(logging.Handler):
    """What the parent's log shows, one text a record."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.levels: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self.levels.append(record.levelname)


@pytest.fixture
def parent() -> Iterator[Kept]:
    """The log of whoever started the stage, where nothing of ours is set up."""
    kept, logger = Kept(), logging.getLogger("parent")
    logger.addHandler(kept)
    logger.setLevel(logging.INFO)
    yield kept
    logger.removeHandler(kept)


def fail(text: object) -> None:
    raise ValueError(text)


def relayed(stream: io.StringIO) -> None:
    relay = LogRelay(logging.getLogger("parent"))
    for line in stream.getvalue().splitlines(keepends=True):
        relay.relay(line)


@pytest.mark.parametrize(
    "name", ["httpx", "httpcore.http11", "urllib3.connectionpool", "botocore.auth", "huggingface_hub.x", "any"]
)
def test_third_parties_are_heard_from_warning_on_and_without_query_strings(stage: io.StringIO, name: str) -> None:
    third = logging.getLogger(name)
    third.debug("sends %s", SIGNED)
    third.info('HTTP Request: GET %s "HTTP/1.1 200 OK"', SIGNED)
    assert stage.getvalue() == ""
    third.warning("Retrying (%r) after connection broken: %s", 2, SIGNED.removeprefix("https://cdn.example"))
    assert "Retrying (2) after connection broken: /x?***" in stage.getvalue()


def test_a_library_with_a_handler_of_its_own_writes_no_signature_and_no_forged_line(stage: io.StringIO) -> None:
    own, library = io.StringIO(), logging.getLogger("transformers.test")
    library.addHandler(logging.StreamHandler(own))
    library.propagate = False
    library.setLevel(logging.DEBUG)
    library.debug(f"a model of type llama\n{GO}")
    try:
        fail(f"{SIGNED}\n{GO}")
    except ValueError:
        library.exception("failed")
    assert SECRET not in own.getvalue()
    assert not [line for line in own.getvalue().splitlines() if line.startswith(GO)]
    assert stage.getvalue() == ""


def test_fields_errors_tracebacks_and_warnings_lose_their_signatures(stage: io.StringIO, parent: Kept) -> None:
    log.info("asked", url=SIGNED, several=[SIGNED], named={SIGNED: 1}, thing=Terminal(SIGNED))
    try:
        fail(SIGNED.encode())
    except ValueError as error:
        log.exception("failed")
        log.warning("%s", error)
        log.warning(Lines(f"failed:\n{SIGNED}"))
    warnings.warn(f"see {SIGNED}", UserWarning, stacklevel=1)
    relayed(stage)
    assert SECRET not in stage.getvalue() + "".join(parent.texts)
    assert parent.levels == ["INFO", "ERROR", "WARNING", "WARNING", "INFO"]
    assert parent.texts[1].startswith("failed\n  | Traceback (most recent call last):\n  |   File")


def test_a_record_is_one_line_from_the_stage_to_the_reader(stage: io.StringIO, parent: Kept) -> None:
    for text in ALL:
        log.info("loads %s", text, model_type=text)
        log.warning(f"loads {text}")
    assert len(stage.getvalue().splitlines()) == 2 * len(ALL)
    relayed(stage)
    assert len(parent.texts) == 2 * len(ALL)
    assert not [text for text in parent.texts if len(text.splitlines()) != 1 or not text.startswith("loads")]
    assert parent.levels[:2] == ["INFO", "WARNING"]


def test_only_tables_and_errors_have_lines_and_all_but_the_first_are_marked(stage: io.StringIO, parent: Kept) -> None:
    log.info("%s", Lines("\na  b\n1  2"))
    log.error("%s", Terminal(f"no start:\n{GO}"))
    log.error("failed: %s: %s", f"a\n{GO}", Terminal(f"b\n{GO}"))
    relayed(stage)
    assert parent.texts == ["\n  | a  b\n  | 1  2", f"no start:\n  | {GO}", f"failed: a\n  | {GO}: b\n  | {GO}"]


def test_output_of_tools_is_told_from_the_stage_s_own_lines_even_in_their_form(
    stage: io.StringIO, parent: Kept
) -> None:
    log.info("begins")
    mark = json.loads(stage.getvalue())["mark"]
    stage.writelines(
        f"{text}\n"
        for text in (
            GO,
            JSON_LINE,
            '{"mark": "guess", "level": "ERROR", "event": "x"}',
            "[" * 100_000,
            f"\x1b[2K\r{GO}",
        )
    )
    stage.write(f"GET {SIGNED}\n")
    log.warning("ends")
    relayed(stage)
    assert parent.texts[0] == "begins"
    assert parent.texts[-1] == "ends"
    assert all(text.startswith("| ") and len(text.splitlines()) == 1 for text in parent.texts[1:-1])
    assert set(parent.levels[1:-1]) == {"INFO"}
    assert SECRET not in "".join(parent.texts)
    assert mark not in "".join(parent.texts)


def test_progress_and_tables_are_for_people_and_the_rest_of_a_stage_is_not(stage: io.StringIO, parent: Kept) -> None:
    get_logger("llm_pipeline.accuracy.evaluate").info("checkpoint loaded")
    Progress("evaluating", 2, "answers").advance(2)
    get_logger("llm_pipeline.stages.baseline").info(Lines("scores:\ntask  score\nsums  29 %"))
    relay = LogRelay(logging.getLogger("nobody"), logging.getLogger("parent"))
    for line in stage.getvalue().splitlines(keepends=True):
        relay.relay(line)
    progress, table = parent.texts
    assert progress.startswith("evaluating: 2 of 2 answers")
    assert table.splitlines() == ["scores:", "  | task  score", "  | sums  29 %"]


def test_why_a_stage_failed_can_be_silenced_where_its_error_is_shown(
    stage: io.StringIO, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_logger(FAILURES).error("a reason")
    relayed(stage)
    assert caplog.messages[1:] == ["a reason"], "once of this process, once relayed"
    monkeypatch.setattr(logging.getLogger(FAILURES), "disabled", True)
    relayed(stage)
    assert len(caplog.messages) == 2


def test_records_of_others_stay_as_they_are_where_only_ours_are_cleaned() -> None:
    clean_records(("llm_pipeline", "httpx"), with_traceback=True)
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger().handlers[:] = [handler]
    logging.getLogger("somebody.else").warning("two\nlines %s", "x?a=b")
    logging.getLogger("httpx").warning("two\nlines %s", "x?a=b")
    try:
        fail(f"{SIGNED}\n{GO}")
    except ValueError:
        logging.getLogger("llm_pipeline.x").exception("failed")
    assert stream.getvalue().startswith("two\nlines x?a=b\ntwo\\nlines x?***\nfailed\n  | Traceback")
    assert not [line for line in stream.getvalue().splitlines() if line.startswith(GO)]
