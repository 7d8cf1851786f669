"""Values in YAML templates."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from llm_pipeline.base.yaml_template import render_yaml

ALL = "".join(map(chr, [*range(0x3000), 0xFEFF, 0xFFFD, 0xFFFE, 0xFFFF, 0x1F600, 0x10FFFF]))
VALUES = [
    ALL, "", "yes", "1e3", "null", "a: b # c", "{{ x }} {% y %}", "\"'\\", "- a\n- b", 5, True, None, ["<&>"],
    {"a": {"b": []}},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_value_is_read_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: object) -> None:
    package = tmp_path / "package_of_a_template"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.yaml.jinja").write_text("a: [{{ value }}, {b: {{ value }}}]\nc:\n- {{ value }}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("package_of_a_template", None)
    found = render_yaml("package_of_a_template", "", "a.yaml.jinja", {"value": value})
    assert found == {"a": [value, {"b": value}], "c": [value]}
