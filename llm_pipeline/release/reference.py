"""The table of a release's steps in `docs/stages.md`: `python -m llm_pipeline.release.reference` prints it."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from llm_pipeline.base.entry import entry_point
from llm_pipeline.release.flow import release_flow
from llm_pipeline.release.step import Effect, Step


def steps_table(steps: Iterable[Step]) -> str:
    """All steps as a table in Markdown, each stage once."""
    rows = ["| step | works on | changes | a verdict other than GO ends |", "|---|---|---|---|"]
    for step in (one for one in steps if not one.stage):
        changes = "" if step.effect is Effect.NONE else step.effect.value
        gate = f"the {step.ends.value}" if step.ends else ""
        rows.append(f"| `{step.name}` | {step.scope.value} | {changes} | {gate} |")
    return "\n".join(rows) + "\n"


@entry_point
def main() -> None:
    """Write the table to stdout."""
    sys.stdout.write(steps_table(release_flow()))


if __name__ == "__main__":
    raise SystemExit(main())
