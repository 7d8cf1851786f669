"""One thing that is wrong, or doubtful, in an LLM-args file."""

from __future__ import annotations

from llm_pipeline.base.records import Frozen


class Problem(Frozen):
    """What is wrong with one key.

    Attributes:
        path: The key with those above it, dotted; empty for the whole file.
        problem: What is wrong.
        hint: What to write instead; empty where nothing is known.
        sure: False where a version later than the recorded ones may accept it.
    """

    path: str
    problem: str
    hint: str = ""
    sure: bool = True

    def __str__(self) -> str:
        place = f"{self.path}: " if self.path else ""
        return f"{place}{self.problem}" + (f" -> {self.hint}" if self.hint else "")
