"""Golden prompts: greedy outputs recorded before serving, that a server must reproduce to count as ready."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import ConfigDict, Field, ValidationError

from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.records import Frozen

GOLDEN_FILE = "golden.jsonl"


class GoldenPrompt(Frozen):
    """One prompt with the greedy output that the accuracy gate judged.

    Attributes:
        prompt: Sent as it is.
        completion: The text that must come back.
        maximum_tokens: Output limit to ask for; `max_tokens` in the file, as in the server's requests.
    """

    model_config = ConfigDict(populate_by_name=True)

    prompt: str = Field(min_length=1)
    completion: str
    maximum_tokens: int = Field(ge=1, alias="max_tokens")


def golden_from_items(items: Sequence[ScoredItem], count: int, *, maximum_tokens: int) -> list[GoldenPrompt]:
    """Up to `count` golden prompts from an evaluation's generative items, spread evenly over all of them.

    A prompt that occurs twice is taken once; items without a completion (nothing was generated) are left out.
    """
    prompts = {item.prompt: item.completion for item in items if item.generative and item.prompt and item.completion}
    pairs = list(prompts.items())
    taken = min(count, len(pairs))
    chosen = (pairs[number * len(pairs) // taken] for number in range(taken))
    return [
        GoldenPrompt(prompt=prompt, completion=completion, maximum_tokens=maximum_tokens)
        for prompt, completion in chosen
    ]


def write_golden(repository: Path, golden: Iterable[GoldenPrompt]) -> None:
    """Write the golden prompts of a model repository."""
    lines = (json.dumps(prompt.model_dump(by_alias=True), ensure_ascii=False) + "\n" for prompt in golden)
    with (repository / GOLDEN_FILE).open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(lines)


def read_golden(repository: Path) -> list[GoldenPrompt]:
    """Read the golden prompts of a model repository.

    Raises:
        IntegrityError: The file is missing, or a line is not a golden prompt.
    """
    path = repository / GOLDEN_FILE
    try:
        with path.open(encoding="utf-8", newline="\n") as stream:
            return [GoldenPrompt.model_validate_json(line) for line in stream]
    except FileNotFoundError as error:
        raise IntegrityError("the model repository has no golden prompts", where=str(path)) from error
    except (ValidationError, UnicodeDecodeError) as error:
        raise IntegrityError(f"not a golden prompt: {error}", where=str(path)) from error
