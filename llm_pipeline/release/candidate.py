"""The candidates that a release by cost tries: each recipe on each target, in each of the target's variants. Pure.

    Candidate.of("h200:fp8:kv_fp8").recipe  # "fp8"

A candidate's name is the subject of its stages, as `h200` is that of the stages of what was chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from llm_pipeline.config.release import ResolvedRelease


class Candidate(NamedTuple):
    """A recipe on a target; `variant` is empty for the target's own arguments."""

    target: str
    recipe: str
    variant: str = ""

    @classmethod
    def of(cls, subject: str) -> Candidate:
        """The candidate of that name."""
        return cls(*subject.split(":"))

    @property
    def subject(self) -> str:
        """Its name: `h200:fp8`, or `h200:fp8:kv_fp8`."""
        return ":".join(filter(None, self))

    @property
    def in_words(self) -> str:
        """Without the target."""
        return in_words(self.recipe, self.variant)


def in_words(recipe: str, variant: str) -> str:
    """For people: `fp8`, or `fp8 with kv_fp8`."""
    return f"{recipe} with {variant}" if variant else recipe


def target_of(subject: str) -> str:
    """The target of a stage's subject: of a candidate, or of a canary's step."""
    return subject.partition(":")[0]


def is_trial(stage: str, subject: str) -> bool:
    """Whether a stage worked on a candidate, which may not be what is released."""
    return ":" in subject and stage != "canary"


def candidates(release: ResolvedRelease, recipes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Recipe by recipe, the target's own arguments before its variants: their names on all targets that have them."""
    variants = dict.fromkeys(("", *(name for target in release.targets for name in target.variants)))
    for recipe in recipes:
        for variant in variants:
            of_targets = [one.name for one in release.targets if variant in ("", *one.variants)]
            yield tuple(Candidate(name, recipe, variant).subject for name in of_targets)
