from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml

from llm_pipeline.base.errors import ConfigError, ExitCode
from llm_pipeline.base.yaml_document import YamlBounds, parse_yaml

CONFIGS = sorted((Path(__file__).parents[1] / "configs").rglob("*.yaml"))


def bomb(aliases: int, levels: int) -> str:
    """Lists of aliases of lists of aliases: a few lines, `aliases ** levels` values."""
    rows = ["a0: &a0 [x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * aliases)}]" for n in range(1, levels + 1)]
    return "\n".join(rows)


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        pytest.param("a:\n  " + "[" * 100_000, "2", "nested deeper than 32 levels (column 34)", id="brackets"),
        pytest.param(bomb(9, 9), "2", "an alias within what has an anchor", id="alias_bomb"),
        pytest.param(f"a: &a [{'x,' * 30_000}]\nb: [{'*a,' * 200}]", "2", "more than 100 aliases", id="many_aliases"),
        pytest.param("a: &a [1, *a]", "1", "an alias within what has an anchor", id="loop"),
        pytest.param("x: 1\na: {b: !!bool foo}", "2", "not valid YAML: the tag '!!bool'", id="tag_of_yaml"),
        pytest.param("a: !!python/name:os.system", "1", "not valid YAML: the tag '!!python/name:os.sy", id="python"),
        pytest.param("a: 1\nb: 2\na: 3", "3", "not valid YAML: the key 'a' is given twice (column 1)", id="twice"),
        pytest.param('a: "\\0"', "1", "a: not valid YAML: a NUL character, which no", id="nul_escaped"),
        pytest.param("a:\n  on: 1", "2", "not valid YAML: a key must be a plain word: put it into", id="on"),
        pytest.param(f"a: {'9' * 5000}", "", "not valid YAML: Exceeds the limit", id="huge_integer"),
        pytest.param("a: 1\nb: x\0y", "", "control characters are not allowed", id="nul"),
        pytest.param("a: x\x1b[2Jy", "", "control characters are not allowed", id="terminal_escape"),
        pytest.param('a: "\\ud800"', "", "a", id="half_a_character"),
        pytest.param("a: [1, 2\nb: 3", "2", "not valid YAML:", id="open_list"),
        pytest.param("a: 1\n---\nb: 2", "2", "another document", id="two_documents"),
        pytest.param("a: *b", "1", "not valid YAML: found undefined alias", id="undefined_alias"),
    ],
)  # fmt: skip
def test_what_is_refused_is_told_with_line_column_and_key(text: str, place: str, problem: str):
    started = time.process_time()
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, where="file.yaml")
    assert time.process_time() - started < 20
    assert str(caught.value).startswith(f"file.yaml:{place}"), str(caught.value)
    assert problem in str(caught.value)
    assert caught.value.exit_code is ExitCode.BAD_INPUT


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("\ufeffa: 1", {"a": 1}),
        ("a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}", {"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}}),
        ("a: &x [1]\nb: [*x, *x]", {"a": [1], "b": [[1], [1]]}),
        ("a: yes\nb: off", {"a": True, "b": False}),
        ("a: '010'\nb: '1:30'\n1: c", {"a": "010", "b": "1:30", 1: "c"}),
        ("a: 1.5e+3\nb: 0x10\nc: 1_000\nd: 0", {"a": 1500.0, "b": 16, "c": 1000, "d": 0}),
        ("a: 1000:1000\nb: 😀\nc: |\n  x\n  \ty", {"a": "1000:1000", "b": "😀", "c": "x\n\ty"}),
    ],
)
def test_plain_yaml_is_read(text: str, value: object):
    assert parse_yaml(text, where="f").value == value


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_committed_config_is_read_as_pyyaml_reads_it(path: Path):
    assert parse_yaml(path.read_bytes(), where=str(path)).value == yaml.safe_load(path.read_text())


def test_documents_of_other_programs_may_surprise_but_not_harm():
    bounds = YamlBounds(strict=False)
    assert parse_yaml("a: 1\na: 2\non: 010", where="f", bounds=bounds).value == {"a": 2, True: 8}
    for text in (bomb(9, 9), "[" * 1000, "!!bool foo"):
        with pytest.raises(ConfigError):
            parse_yaml(text, where="f", bounds=bounds)
