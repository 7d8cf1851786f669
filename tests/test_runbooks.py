"""Every type of error, and every verdict that stops something, has a runbook, which quotes what is really raised."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from llm_pipeline.base.errors import RUNBOOKS_VARIABLE, ConfigError, StageOutOfTime, from_document
from llm_pipeline.base.verdict import Verdict

ROOT = Path(__file__).parents[1]
_SECTION = re.compile(r"^### (\w+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_STANDING_FOR_ANOTHER = {"RemoteStageError", "RemoteStageTransient"}


@cache
def trees() -> tuple[ast.Module, ...]:
    files = (file for folder in ("llm_pipeline", "plugins") for file in sorted((ROOT / folder).rglob("*.py")))
    return tuple(ast.parse(file.read_text()) for file in files)


@cache
def types_of_errors() -> frozenset[str]:
    """The names of all classes below `PipelineError`, without importing what needs a GPU's libraries."""
    bases: dict[str, set[str]] = {}
    for node in (node for tree in trees() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        of_node = {base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases}
        bases.setdefault(node.name, set()).update(of_node)
    found = {"PipelineError"}
    while more := {name for name in bases.keys() - found if bases[name] & found}:
        found |= more
    return frozenset(name for name in found - {"PipelineError"} if not name.startswith("_"))


@cache
def texts() -> str:
    """Every text of the source that may be part of a message; what is put in is a space."""
    found = []
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                found.append(" ".join(str(part.value) for part in node.values if isinstance(part, ast.Constant)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    found.append((ROOT / "llm_pipeline/engines/known_failures.yaml").read_text(encoding="utf-8"))
    return re.sub(r"\s+", " ", "\n".join(found))


def page() -> str:
    return (ROOT / "docs/runbooks.md").read_text()


def sections() -> dict[str, str]:
    return dict(_SECTION.findall(page()))


def quoted(section: str) -> list[str]:
    """What a section quotes of messages: text in code that is no name, command or file."""
    code = (" ".join(text.split()) for text in re.findall(r"`([^`]+)`", section))
    return [text for text in code if " " in text and not text.startswith(("llm-pipeline ", "kill "))]


def is_raised(quote: str) -> bool:
    return all(part.strip(" :;,()") in texts() for part in quote.split("..."))


def test_every_type_of_error_and_every_verdict_but_go_has_a_section_and_nothing_else_has() -> None:
    assert set(sections()) == types_of_errors() | {verdict.value for verdict in Verdict if verdict is not Verdict.GO}


def test_a_runbook_quotes_only_what_is_raised() -> None:
    quotes = {name: quoted(sections()[name]) for name in types_of_errors()}
    assert {name for name, found in quotes.items() if not found} <= _STANDING_FOR_ANOTHER
    assert [(name, one) for name, found in quotes.items() for one in found if not is_raised(one)] == []
    of_tables = [one for row in re.findall(r"^\| (.+?) \| ", page(), re.MULTILINE) for one in quoted(row)]
    assert [one for one in of_tables if not is_raised(one)] == ["Stub process ... is not healthy"], "that is Triton's"


def test_an_error_is_told_with_the_address_of_its_own_runbook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUNBOOKS_VARIABLE, raising=False)
    error = ConfigError("no such key", where="a.yaml:3", hint="spell it right")
    assert error.told == "a.yaml:3: no such key -> spell it right (docs/runbooks.md#configerror)"
    monkeypatch.setenv(RUNBOOKS_VARIABLE, "https://docs.example.com/runbooks/")
    assert error.told.endswith("(https://docs.example.com/runbooks/#configerror)")


def test_an_error_of_a_stages_process_keeps_its_runbook() -> None:
    remote = from_document(StageOutOfTime("stopped").to_document())
    assert (type(remote).__name__, remote.kind) == ("RemoteStageTransient", "StageOutOfTime")
    assert from_document(remote.to_document()).kind == "StageOutOfTime"
