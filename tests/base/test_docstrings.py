"""Public methods are documented: on themselves, or on the port or base class whose method they are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
METHODS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _classes() -> Iterator[tuple[Path, ast.ClassDef]]:
    for folder in ("llm_pipeline", "plugins"):
        for path in (ROOT / folder).rglob("*.py"):
            yield from (
                (path, node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
            )


def _bases(node: ast.ClassDef) -> set[str]:
    plain = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return {ast.unparse(base).rpartition(".")[2] for base in plain}


def test_a_method_without_a_docstring_is_one_that_a_port_or_a_base_class_documents() -> None:
    classes = list(_classes())
    documented = {
        node.name: {one.name for one in node.body if isinstance(one, METHODS) and ast.get_docstring(one)}
        for _, node in classes
    }
    ports = {name for _, node in classes if "Protocol" in _bases(node) for name in documented[node.name]}
    missing = [
        f"{path.relative_to(ROOT)}:{one.lineno} {node.name}.{one.name}"
        for path, node in classes
        if not node.name.startswith("_")
        for one in node.body
        if isinstance(one, METHODS)
        and not one.name.startswith("_")
        and not ast.get_docstring(one)
        and not any(ast.unparse(mark).endswith((".setter", "overload")) for mark in one.decorator_list)
        and one.name not in ports
        and not any(base not in documented or one.name in documented[base] for base in _bases(node) - {"Protocol"})
    ]
    assert not missing
