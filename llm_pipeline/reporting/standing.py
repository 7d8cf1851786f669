"""How a release stands to production: whether it serves, and what served before it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from llm_pipeline.release.contract import StageResult
from llm_pipeline.store.pointers import Pointer, Pointers

UNQUANTIZED = "none"
"""Name and weight format of the recipe that passes the checkpoint through."""

Results = Mapping[tuple[str, str], StageResult]


def chosen_recipes(results: Results) -> dict[str, str]:
    """The recipe that is released on each target; without those that have not chosen yet, or found none that passed."""
    choices = {target: choice.metrics.get("recipe") for (stage, target), choice in results.items() if stage == "choose"}
    return {target: str(recipe) for target, recipe in choices.items() if recipe}


def serves(pointer: Pointer | None, release_id: str, results: Results, target: str) -> bool:
    """Whether a pointer is at this release, or at one that packaged the very same model repository."""
    if pointer is None:
        return False
    packaged = results.get(("package", target))
    same = packaged is not None and pointer.repository in packaged.artifacts.values()
    return pointer.release_id == release_id or (same and ("settle", target) in results)


def served_before(pointers: Pointers, release_id: str, results: Results, target: str) -> Pointer | None:
    """What was in production before the release, or during its canary; None when the pointers no longer know."""
    if serves(pointers.production, release_id, results, target):
        return pointers.previous
    ended = last_start(results)
    for pointer in (pointers.production, pointers.previous):
        if pointer and ended and pointer.promoted_at <= ended and pointer.release_id != release_id:
            return pointer
    return None


def last_start(results: Results) -> datetime | None:
    """When the release's latest stage began; reports, which can be made at any later time, do not count."""
    return max((r.timings.started_at for r in results.values() if r.stage != "report"), default=None)
