"""Rules of python models' code: that it can be loaded, and that it does not undo what the engine does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llm_pipeline.artifacts.repository_layout import MODEL_FILE
from llm_pipeline.serving.lint.repository import Finding, ModelSource, Repository, Severity

_COMPILER_NAMES = ("BuildConfig", "PluginConfig")
_LLM_CLASSES = ("LLM", "AsyncLLM")
_THREADS = ("asyncio", "concurrent", "threading")


def code_rules(model: ModelSource, _: Repository) -> Iterator[Finding]:
    """`model.py` of every version of a python model."""
    if model.config.backend not in ("python", ""):
        return
    for version in model.versions:
        path = version / MODEL_FILE
        if path.is_file():
            yield from _read(model, path)


def _read(model: ModelSource, path: Path) -> Iterator[Finding]:
    file = f"{path.parent.name}/{path.name}"
    try:
        code = _Code(model, file, ast.parse(path.read_bytes()))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the parser's own limits
        line = error.lineno if isinstance(error, SyntaxError) else None
        yield model.finding("code_syntax", f"python cannot read it: {error}", "mend it", line, file=file)
    else:
        yield from code.findings()


@dataclass(frozen=True)
class _Code:
    """The parsed code of one `model.py`."""

    model: ModelSource
    file: str
    tree: ast.Module

    def findings(self) -> Iterator[Finding]:
        if not any(isinstance(node, ast.ClassDef) and node.name == "TritonPythonModel" for node in self.tree.body):
            message = "there is no class TritonPythonModel"
            yield self._finding("code_class", message, "name the model's class TritonPythonModel")
        yield from self._errors_as_answers()
        yield from self._calls_beside_threads()
        if "tensorrt_llm" in self._imported():
            yield from self._compiler_imports()
        if self._has_llm():
            yield from self._batching()
            yield from self._blocking_calls()

    def _errors_as_answers(self) -> Iterator[Finding]:
        """Handlers in `execute` that catch anything, and neither raise nor tell the client."""
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        executes = [n for n in ast.walk(self.tree) if isinstance(n, functions) and n.name == "execute"]
        handlers = [n for execute in executes for n in ast.walk(execute) if isinstance(n, ast.ExceptHandler)]
        for handler in handlers:
            if _catches_all(handler) and not _tells_the_client(handler):
                yield self._finding(
                    "error_as_answer",
                    "a failure is swallowed: the client, and every metric, takes the answer for a success",
                    "InferenceResponse(error=TritonError(...))",
                    handler.lineno,
                )

    def _calls_beside_threads(self) -> Iterator[Finding]:
        """Calls of other models (BLS) beside other threads; why they are dangerous: `serving/models/engine_call.py`."""
        if not self._imported() & set(_THREADS):
            return
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and _is_call_of_model(node):
                yield self._finding(
                    "call_beside_threads",
                    "Triton makes the arrays of its responses without Python's lock: beside other threads the process "
                    "dies under load, and its requests are never answered",
                    "one thread and one request at a time, or call the model over the server's own HTTP or gRPC",
                    node.lineno,
                    "warning",
                )

    def _imported(self) -> set[str]:
        """Top-level packages that it imports."""
        modules = [node.module or "" for node in ast.walk(self.tree) if isinstance(node, ast.ImportFrom)]
        modules += [alias.name for node in ast.walk(self.tree) if isinstance(node, ast.Import) for alias in node.names]
        return {name.split(".")[0] for name in modules}

    def _has_llm(self) -> bool:
        """Whether it makes an LLM of the LLM API, which batches by itself; vision encoders import the package, too."""
        imported = [
            alias.name
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tensorrt_llm"
            for alias in node.names
        ]
        attributes = [
            node.attr
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[0] == "tensorrt_llm"
        ]
        return bool(set(_LLM_CLASSES) & {*imported, *attributes})

    def _batching(self) -> Iterator[Finding]:
        if self.model.config.HasField("dynamic_batching") or self.model.config.max_batch_size > 0:
            yield self.model.finding(
                "batching_twice",
                f"Triton batches in front of {self.file}, whose engine batches in flight by itself",
                "max_batch_size: 0 without dynamic_batching, and generate_async for each request",
                self.model.field_line("dynamic_batching") or self.model.field_line("max_batch_size"),
            )

    def _blocking_calls(self) -> Iterator[Finding]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "generate":
                yield self._finding(
                    "blocking_generate",
                    "generate waits for the last token: no request joins those that run",
                    "generate_async, with a response sender for each request",
                    node.lineno,
                    "warning",
                )

    def _compiler_imports(self) -> Iterator[Finding]:
        imports = [node for node in ast.walk(self.tree) if isinstance(node, ast.ImportFrom)]
        for node in imports:
            if (node.module or "").split(".")[0] != "tensorrt_llm":
                continue
            for name in [alias.name for alias in node.names if alias.name in _COMPILER_NAMES]:
                yield self._finding(
                    "engine_compiler",
                    f"{name} is of the engine compiler: the PyTorch LLM ignores it, and 1.3.0rc22 has it no more",
                    "arguments of the LLM: max_batch_size, max_num_tokens, kv_cache_config, ...",
                    node.lineno,
                    "warning",
                )

    def _finding(
        self, rule: str, message: str, fix: str, line: int | None = None, severity: Severity = "error"
    ) -> Finding:
        return self.model.finding(rule, message, fix, line, severity, file=self.file)


def _is_call_of_model(call: ast.Call) -> bool:
    """Whether it is `request.exec()`, `request.exec(decoupled=...)` or the same of `async_exec`."""
    is_named_so = isinstance(call.func, ast.Attribute) and call.func.attr in ("exec", "async_exec")
    return is_named_so and not call.args and {keyword.arg for keyword in call.keywords} <= {"decoupled"}


def _catches_all(handler: ast.ExceptHandler) -> bool:
    caught = handler.type
    return caught is None or (isinstance(caught, ast.Name) and caught.id in {"Exception", "BaseException"})


def _tells_the_client(handler: ast.ExceptHandler) -> bool:
    nodes = [node for statement in handler.body for node in ast.walk(statement)]
    names = [node.attr for node in nodes if isinstance(node, ast.Attribute)]
    names += [node.id for node in nodes if isinstance(node, ast.Name)]
    return "TritonError" in names or any(isinstance(node, ast.Raise) for node in nodes)
