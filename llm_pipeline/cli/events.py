"""`events`: what happened to the releases of a deployment's store, as lines for people or as JSON lines."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from llm_pipeline.base.errors import ExitCode
from llm_pipeline.cli.options import Commands, add_command, opened, write_lines

if TYPE_CHECKING:
    from llm_pipeline.notifications.event import Event
    from llm_pipeline.store.artifact_store import ArtifactStore

POLL_SECONDS = 2.0


def add_commands(commands: Commands) -> None:
    """Add them to the parser."""
    summary = "show what happened to releases, oldest first: waits, verdicts, failures, canaries, rollbacks"
    events = add_command(
        commands,
        "events",
        _events,
        summary,
        epilog="A reader that remembers the number of the last event it has seen goes on with --after NUMBER.",
    )
    events.add_argument("--release", default="", help="only this release's: its id, or the beginning of it")
    events.add_argument("--after", type=int, default=0, metavar="NUMBER", help="only events with a higher number")
    events.add_argument("--follow", action="store_true", help="go on with new events until interrupted")
    events.add_argument("--json", action="store_true", help="print JSON lines")


def _events(options: argparse.Namespace) -> int:
    _, store = opened(options)
    told = False
    for event in _read(store, max(options.after, 0), follow=options.follow):
        if not event.release_id.startswith(options.release):
            continue
        told = True
        if options.json:
            sys.stdout.write(event.model_dump_json() + "\n")
            sys.stdout.flush()
        else:
            write_lines(_lines(event))
    if not told and not options.json:
        write_lines(["no events"])
    return ExitCode.GO


def _read(store: ArtifactStore, after: int, *, follow: bool) -> Iterator[Event]:
    from llm_pipeline.notifications.stream import read

    while True:
        for event in read(store, after):
            yield event
            after = event.number
        if not follow:
            return
        time.sleep(POLL_SECONDS)


def _lines(event: Event) -> Iterator[str]:
    yield f"{event.number:>6}  {event.at:%Y-%m-%d %H:%M:%S}  {event.severity:<8}  {event.title}"
    indented = (event.why, f"To do: {event.next_action}" if event.next_action else "", event.link)
    yield from (f"{'':>6}  {text}" for text in indented if text)
