"""Golden prompts: greedy outputs recorded before serving, that a server must reproduce to count as ready."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import ConfigDict, Field

from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.json_document import load_records
from llm_pipeline.base.records import Frozen

GOLDEN_FILE = "golden.jsonl"
HALF_A_CHARACTER = "\ufffd"
"""What a detokenizer writes for bytes that are no whole character."""


class GoldenPrompt(Frozen):
    """One prompt with the greedy output that a server of the engine must repeat.

    The build asks the engine itself, where it can run it, for scoring computes in another way (batches, bfloat16), and
    greedy texts part at near ties; until then, and for engines that only a server runs, it is the evaluation's output.

    Attributes:
        prompt: Sent as it is.
        completion: The text that must come back.
        maximum_tokens: Output limit to ask for; `max_tokens` in the file, as in the server's requests.
        stop: Words at which the evaluation ended an answer; a server is not asked to, and goes on.
        goes_on: The evaluation had a higher limit, so that `completion` may be longer than what comes back.
        opens: An answer must begin with `completion`, and may go on in any way.
    """

    model_config = ConfigDict(populate_by_name=True)

    prompt: str = Field(min_length=1)
    completion: str
    maximum_tokens: int = Field(ge=1, alias="max_tokens")
    stop: tuple[str, ...] = ()
    goes_on: bool = False
    opens: bool = False

    def compared(self, text: str, *, was_cut: bool = True) -> tuple[str, str]:
        """The part of the completion that an answer must be, and the answer as the evaluation would have taken it.

        Both without white space at their ends, which detokenizers treat differently.

        Args:
            text: The whole answer.
            was_cut: It ended at `maximum_tokens`, as far as the caller knows.
        """
        ends = [end for word in self.stop if word and (end := text.find(word)) >= 0]
        wanted, got = self.completion.strip(), text[: min(ends, default=len(text))].strip()
        if self.goes_on and was_cut and not ends and (got := got.rstrip(HALF_A_CHARACTER)):
            wanted = wanted[: len(got)]
        return wanted, got[: len(wanted)] if self.opens else got


def answered(golden: Sequence[GoldenPrompt], texts: Iterable[str]) -> list[GoldenPrompt]:
    """The same prompts with what an engine answered, whole."""
    return [
        prompt.model_copy(update={"completion": text, "stop": (), "goes_on": False})
        for prompt, text in zip(golden, texts, strict=True)
    ]


def opened(golden: Sequence[GoldenPrompt], openings: Iterable[str]) -> list[GoldenPrompt]:
    """The prompts with how an engine's answers begin, without those that have no sure beginning."""
    told = (prompt.model_copy(update={"opens": True}) for prompt in answered(golden, openings))
    return [prompt for prompt in told if prompt.completion.strip()]


def golden_from_items(items: Sequence[ScoredItem], count: int, *, maximum_tokens: int) -> list[GoldenPrompt]:
    """Up to `count` golden prompts from an evaluation's generative items, spread evenly over all of them.

    A prompt that occurs twice is taken once; items without a completion (nothing was generated) are left out.

    Args:
        items: Of an evaluation.
        count: Most of them.
        maximum_tokens: Most tokens that a server is asked for; fewer where the task asked for fewer.
    """
    by_prompt = {item.prompt: item for item in items if item.generative and item.prompt and item.completion}
    told = list(by_prompt.values())
    taken = min(count, len(told))
    chosen = (told[number * len(told) // taken] for number in range(taken))
    return [
        GoldenPrompt(
            prompt=item.prompt,
            completion=item.completion,
            maximum_tokens=min(maximum_tokens, item.maximum_tokens or maximum_tokens),
            stop=item.stop,
            goes_on=(item.maximum_tokens or 0) > maximum_tokens,
        )
        for item in chosen
    ]


def write_golden(directory: Path, golden: Iterable[GoldenPrompt]) -> None:
    """Write the golden prompts of an engine or a model repository."""
    lines = (
        json.dumps(prompt.model_dump(by_alias=True, exclude_defaults=True), ensure_ascii=False) + "\n"
        for prompt in golden
    )
    with (directory / GOLDEN_FILE).open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(lines)


def read_golden(directory: Path) -> list[GoldenPrompt]:
    """Read the golden prompts of an engine or a model repository.

    Raises:
        IntegrityError: The file is missing, or a line is not a golden prompt.
    """
    return load_records(GoldenPrompt, directory / GOLDEN_FILE, "not a golden prompt")
