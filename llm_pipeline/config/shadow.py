"""How a candidate's answers are compared with stable's before the first user: how much is asked, what must hold."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from llm_pipeline.config.model import Alpha, ConfigModel, Fraction, PositiveSeconds, Rate, RatioAboveOne, Tokens


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return pattern


Regex = Annotated[str, Field(min_length=1, max_length=2048), AfterValidator(_compiles)]
"""A regular expression in Python's syntax, looked for anywhere in the text."""


class Matches(ConfigModel):
    """An answer in which the expression is found.

    Attributes:
        matches: The regular expression.
    """

    matches: Regex


class NotMatches(ConfigModel):
    """An answer in which the expression is not found.

    Attributes:
        not_matches: The regular expression.
    """

    not_matches: Regex


AnswerCheck = Literal["json"] | Matches | NotMatches
"""What an answer must be: a JSON document, or text in which something is found or not."""


class ShadowPolicy(ConfigModel):
    """How the answers of both arms are compared, with the same prompts at temperature 0.

    A prompt that both versions fail does not count against the candidate.

    Attributes:
        prompts: How many of the workload's prompts are sent, spread over the file.
        requests_per_second: Prompts started per second; each is sent to both versions, while stable serves users.
        maximum_tokens: Length limit of an answer.
        timeout_seconds: Longest time for one answer.
        checks: What answers must be.
        minimum_agreement: Share of words that both answers to a prompt have in common, in order, averaged over the
            prompts. Two quantizations of one model part after some words, and seldom meet again.
        maximum_length_ratio: Tolerated ratio of the answers' lengths in tokens, either way, as a geometric mean.
        minimum_pairs: Fewer prompts that both arms answered are INCONCLUSIVE, and so is a check that fewer of
            stable's answers pass.
        alpha: Chance of a NO_GO for a candidate that is within all limits.
    """

    prompts: int = Field(default=100, ge=1, le=10_000)
    requests_per_second: Annotated[Rate, Field(le=100.0)] = 2.0
    maximum_tokens: Tokens = 64
    timeout_seconds: PositiveSeconds = 30.0
    checks: Annotated[tuple[AnswerCheck, ...], Field(max_length=64)] = ()
    minimum_agreement: Fraction = 0.5
    maximum_length_ratio: RatioAboveOne = 1.5
    minimum_pairs: int = Field(default=20, ge=2, le=10_000)
    alpha: Alpha = 0.05
